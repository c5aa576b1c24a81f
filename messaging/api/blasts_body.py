"""The body of an upload: a list of recipients, read as it comes in, at flat memory, and never taken for whole when cut."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, cast

from django.http import HttpRequest

from messaging.api.parsers import LengthRequired, UnsupportedBody
from messaging.errors import InvalidInput, MessagingError
from messaging.planner.csv_source import CsvSource
from messaging.planner.gunzip import Gunzip
from messaging.planner.ndjson_source import NdjsonSource
from messaging.planner.sources import Source

#: Seconds of silence after which a client is given up: its thread is one of few. Below the lease of an upload.
STALL_SECONDS = 30
#: What is read of a body that was refused, so that its sender hears why: seconds and bytes.
DRAIN_SECONDS, DRAIN_BYTES = 5.0, 256 * 1024 * 1024
#: Bytes of one look at the connection. Small, so that a slow list is written as it comes.
_READ = 16 * 1024

_FORMATS: dict[str, type[CsvSource] | type[NdjsonSource]] = {
    "text/csv": CsvSource,
    "application/x-ndjson": NdjsonSource,
}
_UTF8 = {"utf-8", "utf8", "us-ascii", "ascii"}
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^\s";]+)', re.IGNORECASE)


class BodyStalled(MessagingError):
    """The client sent nothing for too long."""

    status = 408


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
    """The body of one request: `source(kind)` reads the recipients in it; `drain` what is left after a refusal."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._bytes: _Bytes | None = None

    @contextmanager
    def source(self, kind: Kind) -> Iterator[Source]:
        """Reading raises as the source does; InvalidInput `body_incomplete`, BodyStalled."""
        with self._patience(STALL_SECONDS):
            raw: io.RawIOBase = self._open()
            if kind.gzip:
                raw = Gunzip(cast("IO[bytes]", raw).read)
            yield kind.source(cast("IO[bytes]", io.BufferedReader(raw, _READ)))

    def drain(self) -> None:
        """Read on, in bounds, and throw it away: a client that sends all before it listens would find the connection
        closed, and never hear why."""
        end = time.monotonic() + DRAIN_SECONDS
        with suppress(MessagingError), self._patience(DRAIN_SECONDS):
            rest = self._open()
            left = DRAIN_BYTES
            while left > 0 and time.monotonic() < end and (data := rest.read(_READ)):
                left -= len(data)

    def _open(self) -> _Bytes:
        if self._bytes is None:
            self._bytes = _Bytes(self._request)
        return self._bytes

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
        except TimeoutError:
            self._fault = BodyStalled("body_stalled", "The client has been silent for too long. Send the list again.")
            raise self._fault from None
        except Exception:  # noqa: BLE001  (reset; or what the server raises for chunks that do not end, or are none)
            data = None
        if data is None or (not data and self._left is not None):
            self._fault = InvalidInput("body_incomplete", "The connection ended before the body did.")
            raise self._fault
        if self._left is not None:
            self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)
