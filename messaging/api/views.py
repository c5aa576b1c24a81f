"""The views: authenticate, read, hand on, answer. What they do is in `messaging.submission` and `messaging.api.sends*`."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.urls import reverse
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from core.models import Tenant
from messaging.api.auth import ApiKeyAuthentication, Caller
from messaging.api.blasts_slots import upload_slot
from messaging.api.parsers import LARGE_BODY, frame_body
from messaging.api.sends import cancel, find_send, parse_send
from messaging.api.sends_list import list_sends
from messaging.errors import InvalidInput
from messaging.submission import submit_many

log = logging.getLogger(__name__)


class AlwaysJSON(DefaultContentNegotiation):
    """Answers are JSON whatever Accept says: a client with an odd header still wants its answer."""

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        renderer: BaseRenderer = next(iter(renderers))
        return renderer, str(renderer.media_type)


class TenantView(APIView):
    """Base of what a tenant calls with its API key."""

    authentication_classes = [ApiKeyAuthentication]
    permission_classes = [IsAuthenticated]
    content_negotiation_class = AlwaysJSON
    metadata_class = None  # OPTIONS would describe the code

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        frame_body(request._request)  # after authentication: nobody else's body is read

    @staticmethod
    def caller(request: Request) -> Caller:
        assert isinstance(request.user, Caller)
        return request.user

    def tenant(self, request: Request) -> Tenant:
        return self.caller(request).tenant

    def slot(self, request: Request) -> AbstractContextManager[None]:
        """What a large body is read under: it may not take every thread of the process either."""
        large = int(request.META.get("CONTENT_LENGTH") or 0) > LARGE_BODY
        return upload_slot(self.tenant(request).pk) if large else nullcontext()

    @staticmethod
    def body(request: Request) -> dict[str, Any]:
        data = request.data
        if not request.META.get("CONTENT_LENGTH") or request.META["CONTENT_LENGTH"] == "0":
            raise InvalidInput("invalid_json", "The body is empty: send a JSON object.")
        assert isinstance(data, dict)
        return data


#: What is answered about a send is true for a moment.
_FRESH = {"Cache-Control": "no-store"}


class SendsView(TenantView):
    """POST sends: 202 with what was recorded, long before it is sent. GET sends: the tenant's own, newest first."""

    def get(self, request: Request) -> Response:
        return Response(list_sends(self.tenant(request).pk, request.query_params), headers=_FRESH)

    def post(self, request: Request) -> Response:
        tenant = self.tenant(request)
        with self.slot(request):
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
        if submitted.replayed:
            headers["Idempotent-Replayed"] = "true"
        return Response(submitted.as_json(), status=202, headers=headers)


class SendView(TenantView):
    """GET sends/{id}: how it stands with one of the tenant's own sends."""

    def get(self, request: Request, send_id: str) -> Response:
        return Response(find_send(self.tenant(request).pk, send_id), headers=_FRESH)


class SendCancelView(TenantView):
    """POST sends/{id}/cancel: 200 with the send, which will not be sent. Safe to repeat. A body is not looked at."""

    def post(self, request: Request, send_id: str) -> Response:
        tenant = self.tenant(request)
        send, done = cancel(tenant.pk, send_id)
        if done:
            log.info("send_cancelled", extra={"send": send["id"], "tenant": tenant.slug, "rail": send["rail"]})
        return Response(send, headers=_FRESH)
