"""Bodies: one JSON object of bounded length, and nothing that two JSON readers would understand differently."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import IO, Any, NoReturn

from django.http import HttpRequest
from rest_framework.parsers import BaseParser

from messaging.domain.errors import InvalidInput, MessagingError, TooLarge

#: Bytes of a request body: what the fields of a send may hold together, each byte of it in the longest form that JSON has
#: (an ASCII letter as `\\u0041`, six bytes for one), with room to spare. The fields have limits of their own, on what is decoded.
MAX_BODY = 8 * 1024 * 1024
#: From here on a body takes time and memory as an upload does, and one of their slots (`messaging.api.slots`).
LARGE_BODY = 1024 * 1024
#: Objects and lists of a body: each is some 100 bytes of memory for two characters.
MAX_CONTAINERS = 500_000
#: Digits of an integer: as many as Python reads.
MAX_DIGITS = 4_300
#: Levels of nesting; the deepest valid one is `variables`, with 8 of its own.
MAX_DEPTH = 32


class BodyStalled(MessagingError):
    """The client sent nothing for too long, or a byte now and then."""

    status = 408


class LengthRequired(MessagingError):
    """The body has neither a length nor an end that this server can see."""

    status = 411


class UnsupportedBody(MessagingError):
    """A kind of body, or an encoding, that is not read here."""

    status = 415


class BoundedJSONParser(BaseParser):
    """Parses the body of a request to a dict. Reads at most one byte more than `max_body`, whatever is sent.

    Raises TooLarge (`body_too_large`), UnsupportedBody (`unsupported_content_encoding`), InvalidInput (`invalid_json`).
    """

    media_type = "application/json"
    max_body = MAX_BODY

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        meta = parser_context["request"].META if parser_context else {}
        if str(meta.get("HTTP_CONTENT_ENCODING") or "identity").strip().lower() != "identity":
            raise UnsupportedBody("unsupported_content_encoding", "Send JSON as it is, not compressed.")
        if int(meta.get("CONTENT_LENGTH") or 0) > self.max_body:
            raise _too_large(self.max_body)
        data = _read(stream, self.max_body + 1)
        if len(data) > self.max_body:
            raise _too_large(self.max_body)
        return parse_object(data)


def parse_object(data: bytes) -> dict[str, Any]:
    """The object in `data`. Raises InvalidInput (`invalid_json`), whose text quotes nothing of it."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _invalid(f"byte {error.start} is not UTF-8") from None
    containers = text.count("{") + text.count("[")
    if containers > MAX_CONTAINERS:
        raise _invalid(f"it holds more than {MAX_CONTAINERS:,} objects and lists")
    try:
        value = json.loads(text, parse_constant=_constant, parse_int=_integer, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise _invalid(f"line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _invalid("nested too deeply") from None
    if "\\u" in text:  # the only way to half a surrogate pair: decoding has refused the others
        _check_pairs(value)
    if not isinstance(value, dict):
        raise _invalid("the body must be an object: {…}")
    if containers > MAX_DEPTH and not _flat_enough(value):
        raise _invalid(f"nested more than {MAX_DEPTH} levels deep")
    return value


def frame_body(request: HttpRequest, limit: int = MAX_BODY) -> None:
    """Give a body that came without Content-Length its length, reading at most `limit` + 1 bytes of it.

    Django and the REST framework take such a body (chunked, or of HTTP/2) for an empty one. It can only be read where
    its end is marked: gunicorn does that (`wsgi.input_terminated`), ASGI always has the whole body. Elsewhere the
    client is asked for a length.
    """
    meta = request.META
    if meta.get("CONTENT_LENGTH"):
        return
    if "wsgi.input" not in meta:
        source = request._stream
    elif meta.get("wsgi.input_terminated"):
        source = meta["wsgi.input"]
    elif meta.get("HTTP_TRANSFER_ENCODING"):
        raise LengthRequired("length_required", "Send the body with a Content-Length.")
    else:
        return
    data = _read(source, limit + 1)
    request._stream = io.BytesIO(data)  # where Django reads the body from
    meta["CONTENT_LENGTH"] = str(len(data))


def unread(error: OSError) -> MessagingError:
    """What a connection that failed within the body is answered with."""
    if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
        return BodyStalled("body_stalled", "The body has stopped, or comes too slowly. Send it again.")
    return InvalidInput("body_incomplete", "The body was cut, or is not framed as it says. Send it again.")


def _read(stream: Any, limit: int) -> bytes:
    parts: list[bytes] = []
    try:
        while limit > 0 and (part := stream.read(limit)):  # a stream may give less than it was asked for
            parts.append(part)
            limit -= len(part)
    except OSError as error:  # also a framework's, around the connection's own
        raise unread(error) from None
    return b"".join(parts)


def _check_pairs(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _invalid("a string holds half a surrogate pair") from None
    except RecursionError:
        raise _invalid("nested too deeply") from None


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise _invalid("a number is too long")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _invalid("an object has the same key twice")
    return value


def _constant(name: str) -> NoReturn:
    raise _invalid("NaN and Infinity are not JSON")


def _flat_enough(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return True
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    return not any(isinstance(item, dict | list) for item in level)


def _invalid(reason: str) -> InvalidInput:
    return InvalidInput("invalid_json", f"The body is not a JSON object that can be read: {reason}.")


def _too_large(limit: int) -> TooLarge:
    return TooLarge("body_too_large", f"A request body has at most {limit:,} bytes.")
