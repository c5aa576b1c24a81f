"""One HTTP/1.1 connection: bytes in, requests out, answers in order, bytes out.

Written on `asyncio.Protocol` and httptools rather than on an ASGI server because half of what the sandbox is for
happens below ASGI: a body cut short, a connection closed or reset without a byte, an answer that never comes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from http import HTTPStatus
from urllib.parse import parse_qsl

import httptools

from devtools.sandbox.errors import BAD_HTTP, TOO_LARGE
from devtools.sandbox.messages import Answer, Ending, Request

MAX_BODY = 40 * 1024 * 1024  # Resend's largest e-mail, attachments included

Handler = Callable[[Request, Callable[[Answer], None]], None]

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_LINGER_0 = struct.pack("ii", 1, 0)  # closing sends RST


class Connection(asyncio.Protocol):
    def __init__(self, handle: Handler, open_connections: set[Connection]) -> None:
        self._handle, self._open = handle, open_connections
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._waiting: deque[tuple[Request, bool]] = deque()  # pipelined: answered one after the other
        self._busy = self._keep_alive = False
        self._hung: Answer | None = None
        self._delayed: tuple[asyncio.TimerHandle, Answer] | None = None
        self._stream: Iterator[bytes] | None = None
        self._paused = self._stopping = False

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        self._parser = None  # parser and connection hold each other
        self._waiting.clear()
        self._stream = None
        if self._hung and self._hung.done:
            self._hung.done()

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._transport.is_closing():
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(BAD_HTTP.answer())

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    # --- httptools callbacks

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body, self._size = b"", {}, [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= MAX_BODY:
            self._body.append(body)
        elif not self._transport.is_closing():
            self._refuse(TOO_LARGE.answer())

    def on_message_complete(self) -> None:
        if self._size > MAX_BODY or self._parser is None:
            return
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(
            self._parser.get_method().decode(), path, dict(parse_qsl(query)), self._headers, b"".join(self._body)
        )
        self._body = []
        self._waiting.append((request, self._parser.should_keep_alive()))
        self._next()

    # --- answering

    def _next(self) -> None:
        if self._waiting and not self._busy and not self._transport.is_closing():
            self._busy = True
            request, self._keep_alive = self._waiting.popleft()
            self._handle(request, self._respond)

    def _respond(self, answer: Answer) -> None:
        if answer.delay > 0 and not self._stopping:
            self._delayed = (self._loop.call_later(answer.delay, self._send, answer), answer)
        else:
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        self._delayed = None
        if answer.ending is Ending.HUNG and not self._transport.is_closing():
            self._hung = answer
            return
        if answer.done:
            answer.done()
        if self._transport.is_closing():
            return
        if answer.ending is Ending.RESET:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
            self._transport.abort()
        elif answer.ending is Ending.DROPPED:
            self._transport.close()
        elif answer.stream is not None:
            self._transport.write(self._head(answer, "transfer-encoding: chunked"))
            self._stream = answer.stream
            self._pump()
        else:
            body = answer.body if answer.ending is Ending.WHOLE else answer.body[: len(answer.body) // 2]
            self._transport.write(self._head(answer, f"content-length: {len(answer.body)}") + body)
            self._finish(keep_alive=answer.ending is Ending.WHOLE)

    def _head(self, answer: Answer, length: str) -> bytes:
        lines = [
            f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, '')}",
            f"content-type: {answer.content_type}",
            length,
            *(f"{name}: {value}" for name, value in answer.headers),
        ]
        if not self._keep_alive or self._stopping:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _pump(self) -> None:
        """Writes a chunk and comes back, so that other connections are served between the chunks."""
        if self._stream is None or self._paused or self._transport.is_closing():
            return
        chunk = next(self._stream, None)
        if chunk is None:
            self._stream = None
            self._transport.write(b"0\r\n\r\n")
            self._finish()
        else:
            if chunk:  # an empty one would end the body
                self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self._loop.call_soon(self._pump)

    def _finish(self, *, keep_alive: bool = True) -> None:
        self._busy = False
        if not keep_alive or not self._keep_alive or self._stopping:
            self._transport.close()
        elif self._waiting:
            self._loop.call_soon(self._next)  # not a call: pipelined requests must not pile up on the stack

    def _refuse(self, answer: Answer) -> None:
        """Answers what is not a request that can be handled, and closes."""
        self._keep_alive = False
        self._waiting.clear()
        self._send(answer)

    # --- stopping

    def stop(self) -> None:
        """Closes: at once when idle or hung, else after the answer that is due, which leaves without more delay."""
        self._stopping = True
        if self._delayed:
            timer, answer = self._delayed
            timer.cancel()
            self._send(answer)
        if self._stream is None:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
