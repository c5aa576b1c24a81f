"""`GET /metrics`, in Prometheus' text format: open with DEBUG, else for whoever has `METRICS_TOKEN`."""

from __future__ import annotations

import hmac

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from messaging.metrics.scrape import scrapes


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """404 without a token set: then there is no such page. 401 for a missing or wrong one."""
    if not settings.DEBUG:
        if not settings.METRICS_TOKEN:
            return HttpResponse("Not found.\n", status=404, content_type="text/plain")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            token.strip().encode(), settings.METRICS_TOKEN.encode()
        ):
            refused = HttpResponse("The bearer token is missing or wrong.\n", status=401, content_type="text/plain")
            refused.headers["WWW-Authenticate"] = 'Bearer realm="metrics"'
            return refused
    return HttpResponse(scrapes().text(), content_type=CONTENT_TYPE_LATEST)
