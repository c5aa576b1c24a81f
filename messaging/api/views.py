"""What all views of a tenant have in common: who calls, how much of the body is read, and that answers are JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from core.models import Tenant
from messaging.api.auth import ApiKeyAuthentication, Caller
from messaging.api.errors import exception_handler
from messaging.api.parsers import LARGE_BODY, MAX_BODY, BoundedJSONParser, frame_body
from messaging.api.slots import slot_of
from messaging.domain.errors import InvalidInput

#: What is answered about a send or a blast is true for a moment.
FRESH = {"Cache-Control": "no-store"}
#: The answer of the first request with the same idempotency key.
REPLAYED = {"Idempotent-Replayed": "true"}


class AlwaysJSON(DefaultContentNegotiation):
    """Answers are JSON whatever Accept says: a client with an odd header still wants its answer."""

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        renderer: BaseRenderer = next(iter(renderers))
        return renderer, str(renderer.media_type)


class TenantView(APIView):
    """Base of what a tenant calls with its API key. It brings all that it needs, whatever a project's `REST_FRAMEWORK` says."""

    authentication_classes = [ApiKeyAuthentication]
    permission_classes = [IsAuthenticated]
    throttle_classes = []
    versioning_class = None
    parser_classes: Sequence[type[BaseParser]] = [BoundedJSONParser]
    renderer_classes = [JSONRenderer]
    content_negotiation_class = AlwaysJSON
    metadata_class = None  # OPTIONS would describe the code

    max_body = MAX_BODY

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with ExitStack() as self._slot:
            return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """After authentication: nobody else's body is read. A body that takes memory or time is read in one of few slots."""
        super().initial(request, *args, **kwargs)
        self._holds_slot = False
        connection: Any = request.META.get("gunicorn.socket")
        if hasattr(connection, "when_slow"):  # `config.pace`: other servers have the whole body, or a proxy in front
            connection.when_slow = lambda: self.take_slot(request)
        if int(request.META.get("CONTENT_LENGTH") or 0) > LARGE_BODY:
            self.take_slot(request)
        self.frame(request)

    def frame(self, request: Request) -> None:
        frame_body(request._request, self.max_body)

    def take_slot(self, request: Request) -> None:
        """Until the answer is there. Raises Throttled, Unavailable."""
        if not self._holds_slot:
            self._slot.enter_context(slot_of(self.tenant(request).pk))
            self._holds_slot = True

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response]:
        return exception_handler

    @staticmethod
    def caller(request: Request) -> Caller:
        assert isinstance(request.user, Caller)
        return request.user

    def tenant(self, request: Request) -> Tenant:
        return self.caller(request).tenant

    @staticmethod
    def body(request: Request) -> dict[str, Any]:
        data = request.data
        if not request.META.get("CONTENT_LENGTH") or request.META["CONTENT_LENGTH"] == "0":
            raise InvalidInput("invalid_json", "The body is empty: send a JSON object.")
        assert isinstance(data, dict)
        return data
