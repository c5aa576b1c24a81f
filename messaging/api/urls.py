"""The HTTP API under /v1/messaging/."""

from __future__ import annotations

from django.urls import path

from messaging.api.views import SendCancelView, SendsView, SendView

urlpatterns = [
    path("sends", SendsView.as_view(), name="messaging-sends"),
    path("sends/<str:send_id>", SendView.as_view(), name="messaging-send"),
    path("sends/<str:send_id>/cancel", SendCancelView.as_view(), name="messaging-send-cancel"),
]
