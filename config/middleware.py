"""What is refused before anybody looks at it, and what cannot be answered just now."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest

from core.db.faults import is_transient

log = logging.getLogger(__name__)

#: Seconds after which a visitor may try again.
_RETRY_AFTER = 5


class RefuseNul:
    """A NUL in a cookie is an attack or an accident, and PostgreSQL takes none: the session look-up would be a 500."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._next = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if any("\0" in value for value in request.COOKIES.values()):
            return HttpResponseBadRequest("A cookie holds a NUL character.", content_type="text/plain")
        return self._next(request)


class AwayForNow:
    """A page (the admin's, say) that met a database or Redis which is away, takes no writes, or is busy with this very record:
    503, not a bug. The API says it in its own words (`messaging.api.errors`)."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._next = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._next(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not is_transient(exception):
            return None
        log.warning("page_unavailable", extra={"method": request.method, "error": type(exception).__name__})
        return HttpResponse(
            "The database is away, or busy with this very record. Try again in a moment.",
            content_type="text/plain; charset=utf-8",
            status=503,
            headers={"Retry-After": str(_RETRY_AFTER)},
        )
