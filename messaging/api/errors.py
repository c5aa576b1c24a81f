"""What goes wrong, as answers: `{"error": {"code", "message", "field"?}}`. Codes are stable; messages are for people.

An unexpected exception is a 500 without text, and is logged by its type and place only: texts of foreign exceptions
may quote data.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import Error
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from django.views import defaults
from rest_framework import exceptions
from rest_framework.response import Response

from core.db.faults import is_transient
from messaging.domain.errors import MessagingError

log = logging.getLogger(__name__)

PREFIX = "/v1/"
#: Seconds after which a client may try again when the database was away: a restart takes about as long.
DATABASE_RETRY_AFTER = 5


@dataclass(frozen=True, slots=True)
class Problem:
    status: int
    code: str
    message: str
    field: str | None = None
    retry_after: int | None = None

    def body(self) -> dict[str, dict[str, str]]:
        error = {"code": self.code, "message": self.message}
        return {"error": error | ({"field": self.field} if self.field else {})}

    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


_NOT_FOUND = Problem(404, "not_found", "There is nothing here, or nothing of yours.")
_INTERNAL = Problem(500, "internal_error", "Something went wrong here. It was logged; try again later.")
_DATABASE = Problem(
    503,
    "database_unavailable",
    "The database is away, or busy with this very record. Try again; with an Idempotency-Key nothing can be sent twice.",
    retry_after=DATABASE_RETRY_AFTER,
)

#: The framework's own refusals, in our words: its texts quote what was sent.
_FRAMEWORK: dict[type[exceptions.APIException], Problem] = {
    exceptions.NotAuthenticated: Problem(
        401, "not_authenticated", "Send your API key: Authorization: Bearer drk_… The operator issues it."
    ),
    exceptions.AuthenticationFailed: Problem(401, "authentication_failed", "These credentials are not accepted."),
    exceptions.PermissionDenied: Problem(403, "permission_denied", "You may not do this."),
    exceptions.NotFound: _NOT_FOUND,
    exceptions.MethodNotAllowed: Problem(405, "method_not_allowed", "This method is not for this path. See Allow."),
    exceptions.NotAcceptable: Problem(406, "not_acceptable", "Answers are application/json."),
    exceptions.UnsupportedMediaType: Problem(
        415, "unsupported_media_type", "Send JSON, with the header Content-Type: application/json."
    ),
    exceptions.ParseError: Problem(400, "invalid_request", "The request cannot be read."),
    exceptions.Throttled: Problem(429, "too_many_requests", "Too many requests. Try again later."),
}


def problem_of(error: Exception) -> Problem:
    """What the caller is told about `error`."""
    match error:
        case MessagingError():
            field = "from" if error.field == "from_" else error.field
            return Problem(error.status, error.code, error.message, field, error.retry_after)
        case Error() if is_transient(error):
            return _DATABASE
        case Http404():
            return _NOT_FOUND
        case PermissionDenied():
            return _FRAMEWORK[exceptions.PermissionDenied]
        case UnreadablePostError():
            return Problem(400, "body_incomplete", "The connection ended before the body did.")
        case exceptions.APIException():
            return _of_framework(error)
        case _:
            return _INTERNAL


def _of_framework(error: exceptions.APIException) -> Problem:
    found = next((_FRAMEWORK[kind] for kind in type(error).__mro__ if kind in _FRAMEWORK), None)
    if found is None:
        return Problem(error.status_code, str(error.default_code), str(error.default_detail))
    wait = getattr(error, "wait", None)
    return Problem(found.status, found.code, found.message, retry_after=None if wait is None else max(1, round(wait)))


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Of the API's views."""
    problem = problem_of(error)
    _log(problem, error, context["request"].method)
    response = Response(problem.body(), status=problem.status, headers=problem.headers())
    response._has_been_logged = True  # type: ignore[attr-defined]  # else Django logs a 5xx again, with its query string
    return response


def _log(problem: Problem, error: Exception, method: str | None) -> None:
    fields: dict[str, Any] = {"code": problem.code, "status": problem.status, "method": method}
    if problem is _INTERNAL:
        log.error("request_failed", extra=fields, exc_info=error)
    elif problem is _DATABASE:
        log.warning("request_refused", extra=fields | {"error": type(error).__name__})
    else:
        log.info("request_refused", extra=fields)


def _json(problem: Problem) -> JsonResponse:
    return JsonResponse(problem.body(), status=problem.status, headers=problem.headers())


def unknown_path(request: HttpRequest) -> HttpResponse:
    """The last pattern under /v1/: JSON, also with DEBUG on (where Django shows a page of its own)."""
    return _json(_NOT_FOUND)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """handler400: a request that no view saw, such as one for an unknown host."""
    if request.path_info.startswith(PREFIX):
        return _json(Problem(400, "bad_request", "This request cannot be answered. Is the host name right?"))
    return defaults.bad_request(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """handler500: an exception outside of the views."""
    return _json(_INTERNAL) if request.path_info.startswith(PREFIX) else defaults.server_error(request)
