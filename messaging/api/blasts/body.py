"""The body of an upload: a list of recipients, read as it comes in, at flat memory, and never taken for whole when cut."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

from django.http import HttpRequest

from messaging.api.parsers import LengthRequired, UnsupportedBody, unread
from messaging.domain.errors import InvalidInput, MessagingError
from messaging.planner.csv_source import CsvSource
from messaging.planner.gunzip import Gunzip
from messaging.planner.ndjson_source import NdjsonSource
from messaging.planner.sources import Source

#: Seconds of silence after which a client is given up: its thread is one of few. Below the lease of an upload.
STALL_SECONDS = 30
#: Bytes of one look at the connection. Small, so that a slow list is written as it comes.
_READ = 16 * 1024

_FORMATS: dict[str, type[CsvSource] | type[NdjsonSource]] = {
    "text/csv": CsvSource,
    "application/x-ndjson": NdjsonSource,
}
_UTF8 = {"utf-8", "utf8", "us-ascii", "ascii"}
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^\s";]+)', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """What the headers say of a list."""

    source: type[CsvSource] | type[NdjsonSource]
    gzip: bool


def kind_of(meta: Mapping[str, Any]) -> Kind:
    """Raises UnsupportedBody: `unsupported_media_type`, `unsupported_charset`, `unsupported_content_encoding`."""
    header = str(meta.get("CONTENT_TYPE") or "")
    source = _FORMATS.get(header.partition(";")[0].strip().lower())
    if source is None:
        raise UnsupportedBody(
            "unsupported_media_type",
            "Send the list itself as the body, with Content-Type: text/csv or application/x-ndjson.",
        )
    charset = _CHARSET.search(header)
    if charset and charset[1].lower() not in _UTF8:
        raise UnsupportedBody("unsupported_charset", "The list must be UTF-8. Convert it, or say so in Content-Type.")
    encoding = str(meta.get("HTTP_CONTENT_ENCODING") or "identity").strip().lower()
    if encoding not in ("gzip", "x-gzip", "identity"):
        raise UnsupportedBody(
            "unsupported_content_encoding", "Send the list as it is, or with Content-Encoding: gzip (once)."
        )
    return Kind(source, encoding != "identity")


class UploadBody:
    """The body of one request: `source(kind)` reads the recipients in it."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    @contextmanager
    def source(self, kind: Kind) -> Iterator[Source]:
        """Reading raises as the source does; InvalidInput `body_incomplete`, BodyStalled."""
        with self._patience(STALL_SECONDS):
            raw: io.RawIOBase = _Bytes(self._request)
            if kind.gzip:
                raw = Gunzip(cast("IO[bytes]", raw).read)
            yield kind.source(cast("IO[bytes]", io.BufferedReader(raw, _READ)))

    @contextmanager
    def _patience(self, seconds: float) -> Iterator[None]:
        """Bound the silence of the client, where the server lets us (gunicorn: it waits for ever otherwise)."""
        socket = self._request.META.get("gunicorn.socket")
        if socket is None:
            yield
            return
        before = socket.gettimeout()
        socket.settimeout(seconds)
        try:
            yield
        finally:
            socket.settimeout(before)


class _Bytes(io.RawIOBase):
    """As many bytes as Content-Length says, or until the marked end; an error if they do not come."""

    def __init__(self, request: HttpRequest) -> None:
        meta = request.META
        length = meta.get("CONTENT_LENGTH") or None
        self._left = None if length is None else int(length)
        self._fault: MessagingError | None = None
        if "wsgi.input" not in meta:  # ASGI: Django has put it into a temporary file
            self._stream: IO[bytes] = request._stream
        elif length is not None or meta.get("wsgi.input_terminated"):
            self._stream = meta["wsgi.input"]
        elif meta.get("HTTP_TRANSFER_ENCODING"):
            raise LengthRequired("length_required", "Send the body with a Content-Length.")
        else:
            self._stream = io.BytesIO()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # io.BufferedReader hands over a memoryview
        if self._fault is not None:
            raise self._fault
        size = len(buffer) if self._left is None else min(len(buffer), self._left)
        if not size:
            return 0
        try:
            data = self._stream.read(size)
        except OSError as error:
            self._fault = unread(error)
            raise self._fault from None
        if not data and self._left:
            self._fault = InvalidInput("body_incomplete", "The connection ended before the body did.")
            raise self._fault
        if self._left is not None:
            self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)
