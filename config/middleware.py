"""What is refused before anybody looks at it."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest


class RefuseNul:
    """A NUL in a cookie is an attack or an accident, and PostgreSQL takes none: the session look-up would be a 500."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._next = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if any("\0" in value for value in request.COOKIES.values()):
            return HttpResponseBadRequest("A cookie holds a NUL character.", content_type="text/plain")
        return self._next(request)
