"""The views of sends: authenticate, read, hand on, answer."""

from __future__ import annotations

import logging

from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from messaging.api.sends.fields import cancel, find_send, parse_send
from messaging.api.sends.listing import list_sends
from messaging.api.views import FRESH, REPLAYED, TenantView
from messaging.services.submit import submit_many

log = logging.getLogger(__name__)


class SendsView(TenantView):
    """POST sends: 202 with what was recorded, long before it is sent. GET sends: the tenant's own, newest first."""

    def get(self, request: Request) -> Response:
        return Response(list_sends(self.tenant(request).pk, request.query_params), headers=FRESH)

    def post(self, request: Request) -> Response:
        tenant = self.tenant(request)
        send = parse_send(self.body(request), request.META.get("HTTP_IDEMPOTENCY_KEY"))
        submitted = submit_many(tenant, [send], self.caller(request).allowance)[0]
        log.info(
            "send_submitted",
            extra={
                "send": str(submitted.id),
                "tenant": tenant.slug,
                "rail": submitted.rail.value,
                "replayed": submitted.replayed,
            },
        )
        headers = {"Location": reverse("messaging-send", args=[submitted.id])}
        return Response(submitted.as_json(), status=202, headers=headers | (REPLAYED if submitted.replayed else {}))


class SendView(TenantView):
    """GET sends/{id}: how it stands with one of the tenant's own sends."""

    def get(self, request: Request, send_id: str) -> Response:
        return Response(find_send(self.tenant(request).pk, send_id), headers=FRESH)


class SendCancelView(TenantView):
    """POST sends/{id}/cancel: 200 with the send, which will not be sent. Safe to repeat. A body is not looked at."""

    def post(self, request: Request, send_id: str) -> Response:
        tenant = self.tenant(request)
        send, done = cancel(tenant.pk, send_id)
        if done:
            log.info("send_cancelled", extra={"send": send["id"], "tenant": tenant.slug, "rail": send["rail"]})
        return Response(send, headers=FRESH)
