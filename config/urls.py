from django.contrib import admin
from django.urls import include, path, re_path
from django.views.decorators.csrf import csrf_exempt

from messaging.api.errors import unknown_path
from messaging.metrics.view import metrics

urlpatterns = [
    path("admin/", admin.site.urls),
    path("metrics", metrics),
    path("v1/messaging/", include("messaging.api.urls")),
    re_path(r"^v1(?:/|$)", csrf_exempt(unknown_path)),  # the last under v1/: whatever is not there is told in JSON
]

handler400 = "messaging.api.errors.bad_request"
handler500 = "messaging.api.errors.server_error"
