"""What all views of a tenant have in common: who calls, how much of the body is read, and that answers are JSON."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from core.models import Tenant
from messaging.api.auth import ApiKeyAuthentication, Caller
from messaging.api.parsers import LARGE_BODY, frame_body
from messaging.api.slots import upload_slot
from messaging.domain.errors import InvalidInput


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
