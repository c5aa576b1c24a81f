"""Every answer leaves its connection fit for the next request, or says that it ends there.

A request may be answered before its body was read: it is refused by its headers, its key, its size. What is left of the
body must not be taken for the next request, and a connection must not be announced as kept and then be closed: behind a
proxy that shares its connections, the next request on it is somebody else's. So what is left is read and thrown away
before the answer begins, in bounds; where it is more than that, or comes too slowly, the answer says `Connection: close`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gunicorn.http.errors import ParseException

from config.pace import Pace, PacedSocket

#: Seconds, bytes and seconds of silence for which the rest of a body is read, so that its sender hears the answer (who sends
#: all of it before he listens would find the connection closed instead).
DRAIN_SECONDS, DRAIN_BYTES, DRAIN_SILENCE = 5.0, 256 * 1024 * 1024, 1.0
_READ = 16 * 1024


class Framed:
    """A WSGI application around another one. gunicorn is told to close through its own `start_response`: it takes no
    `Connection` header from an application (PEP 3333 forbids them)."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"] = Body(environ)

        def begin(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            force_close = getattr(getattr(start_response, "__self__", None), "force_close", None)
            if not body.finish() and force_close is not None:
                force_close()
            return start_response(status, headers, exc_info)

        return self._application(environ, begin)


class Body:
    """`wsgi.input`. What a server raises for a body that is cut or badly framed reaches the application as an OSError,
    which is what it has to expect of a connection; everything else is a bug."""

    def __init__(self, environ: dict[str, Any]) -> None:
        self._stream = environ["wsgi.input"]
        self._socket = environ.get("gunicorn.socket")
        length = environ.get("CONTENT_LENGTH") or ""
        self._left: int | None = int(length) if length.isdecimal() else None
        marked = bool(environ.get("wsgi.input_terminated"))  # the server sees where the body ends
        self._ended = not self._left if self._left is not None else not marked
        self._fault: OSError | None = None
        if self._ended and self._left is None and environ.get("HTTP_TRANSFER_ENCODING"):
            self._fault = ConnectionError("nobody can tell where the body ends")

    def read(self, size: int | None = -1) -> bytes:
        return self._take(self._stream.read, size)

    def readline(self, size: int | None = -1) -> bytes:
        return self._take(self._stream.readline, size)

    def readlines(self, hint: int | None = -1) -> list[bytes]:
        return list(self)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def finish(self) -> bool:
        """Read what is left, in bounds. Whether it was read to its end."""
        whole = self._fault is None and (self._ended or self._drain())
        if isinstance(self._socket, PacedSocket):
            self._socket.whole = whole
        return whole

    def _drain(self) -> bool:
        if (self._left or 0) > DRAIN_BYTES:
            return False
        end, budget = time.monotonic() + DRAIN_SECONDS, DRAIN_BYTES
        before = None if self._socket is None else self._socket.gettimeout()
        try:
            self._wait_at_most()
            while not self._ended:
                if budget <= 0 or time.monotonic() > end:
                    return False
                budget -= len(self.read(_READ))
        except OSError:
            return False
        finally:
            if self._socket is not None:
                self._socket.settimeout(before)
        return True

    def _wait_at_most(self) -> None:
        if isinstance(self._socket, PacedSocket):
            self._socket.keep(Pace(grace=DRAIN_SECONDS, rate=float("inf"), silence=DRAIN_SILENCE))
        elif self._socket is not None:
            self._socket.settimeout(DRAIN_SILENCE)

    def _bounded(self, size: int | None) -> int:
        """As many bytes as there may be: a server that does not mark the end would wait for the next request."""
        asked = -1 if size is None else size
        if self._left is None:
            return asked
        return min(asked, self._left) if asked >= 0 else self._left

    def _take(self, read: Callable[[int], bytes], size: int | None) -> bytes:
        if self._fault is not None:
            raise self._fault
        if self._ended or size == 0:
            return b""
        try:
            data = read(self._bounded(size))
        except OSError as error:
            self._fault = error
            raise
        except ParseException as error:
            self._fault = ConnectionError(f"the body is badly framed ({type(error).__name__})")
            raise self._fault from None
        except BaseException:
            # `PacedSocket.when_slow`: the server's reader was broken off, and would say that this was the end.
            self._fault = ConnectionError("reading was broken off")
            raise
        if self._left is not None:
            self._left -= len(data)
        if not data and self._left:
            self._fault = ConnectionError("the connection ended before the body did")
            raise self._fault
        self._ended = not data if self._left is None else not self._left
        return data
