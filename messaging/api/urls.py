"""The HTTP API under /v1/messaging/."""

from __future__ import annotations

from django.urls import path

from messaging.api.blasts.views import BlastStepView, BlastsView, BlastView, RecipientsView, RejectedView
from messaging.api.sends.views import SendCancelView, SendsView, SendView

urlpatterns = [
    path("sends", SendsView.as_view(), name="messaging-sends"),
    path("sends/<str:send_id>", SendView.as_view(), name="messaging-send"),
    path("sends/<str:send_id>/cancel", SendCancelView.as_view(), name="messaging-send-cancel"),
    path("blasts", BlastsView.as_view(), name="messaging-blasts"),
    path("blasts/<str:blast_id>", BlastView.as_view(), name="messaging-blast"),
    path("blasts/<str:blast_id>/recipients", RecipientsView.as_view(), name="messaging-blast-recipients"),
    path("blasts/<str:blast_id>/rejected", RejectedView.as_view(), name="messaging-blast-rejected"),
    *(
        path(f"blasts/<str:blast_id>/{step}", BlastStepView.as_view(step=step), name=f"messaging-blast-{step}")
        for step in ("launch", "pause", "resume", "cancel")
    ),
]
