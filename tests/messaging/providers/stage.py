"""A scripted server on a socket: exact bytes on the wire, and an account of everything that reached it.

An *act* is what the server does with one request. It gets the link and the request as seen, and may write, wait,
cut or reset. Acts are taken from `script` one for each request, in the order of arrival; then `default` goes on.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Seen:
    """A request, read to its end."""

    method: str
    path: str
    headers: Mapping[str, str]  # lower-case names
    body: bytes
    connection: int  # ordinal of the connection it came on

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Response:
    """A well-formed answer. `wire()` is what goes onto the socket."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: int, value: object, headers: Mapping[str, str] | None = None) -> Response:
        return cls(status, json.dumps(value).encode(), {"content-type": "application/json", **(headers or {})})

    def wire(self) -> bytes:
        reason = http.client.responses.get(self.status, "Odd")
        lines = [f"HTTP/1.1 {self.status} {reason}", *(f"{k}: {v}" for k, v in self.headers.items())]
        return "\r\n".join([*lines, f"content-length: {len(self.body)}", "", ""]).encode("latin-1") + self.body


class Link:
    """One connection, at the server's end."""

    def __init__(self, sock: socket.socket, closing: threading.Event) -> None:
        self.sock = sock
        self.closing = closing

    def write(self, data: bytes) -> None:
        self.sock.sendall(data)

    def trickle(self, data: bytes, every: float = 0.02) -> None:
        """A byte at a time: each comes well before a time-out per operation would strike."""
        for byte in data:
            if self.closing.wait(every):
                return
            self.write(bytes([byte]))

    def wait_for_hangup(self) -> None:
        while self.sock.recv(65536):
            pass

    def reset(self) -> None:
        """Close so that the client gets RST in place of an orderly end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class HangUpError(Exception):
    """Raised by an act: the connection ends here."""


Act = Callable[[Link, Seen], None]


def reply(response: Response) -> Act:
    return lambda link, _: link.write(response.wire())


def raw(data: bytes) -> Act:
    """These bytes, then the end of the connection."""

    def act(link: Link, _: Seen) -> None:
        link.write(data)
        raise HangUpError

    return act


def drop(link: Link, _: Seen) -> None:
    raise HangUpError


def reset(link: Link, _: Seen) -> None:
    link.reset()
    raise HangUpError


def hang(link: Link, _: Seen) -> None:
    link.wait_for_hangup()
    raise HangUpError


def cut(response: Response, keep: int | None = None) -> Act:
    """The answer without its end: half of the body, or the first `keep` bytes of everything."""
    data = response.wire()
    return raw(data[: len(data) - max(1, len(response.body) // 2) if keep is None else keep])


def trickled_headers(response: Response) -> Act:
    return lambda link, _: link.trickle(response.wire())


def trickled_body(response: Response) -> Act:
    def act(link: Link, _: Seen) -> None:
        head, _sep, body = response.wire().partition(b"\r\n\r\n")
        link.write(head + b"\r\n\r\n")
        link.trickle(body)

    return act


class Stage:
    """The server. `url` is its address; what it saw: `requests`, `connections`, `bytes_in`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.default: Act = reply(Response(404))
        self.script: deque[Act] = deque()
        self.requests: list[Seen] = []
        self.connections = 0
        self.bytes_in = 0
        self.hang_up_after_answer = False  # without "connection: close": the client finds out later
        self.hung_up = threading.Semaphore(0)  # released for every connection that ended
        self._tls = tls
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._links: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://{'localhost' if tls else '127.0.0.1'}:{self.port}"
        self._acceptor = threading.Thread(target=self._accept, name="stage")
        self._acceptor.start()

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            for sock in self._links:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                self._links.add(sock)
                thread = threading.Thread(target=self._serve, args=(sock, self.connections), name="stage-link")
                self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket, ordinal: int) -> None:
        sock = plain
        try:
            if self._tls is not None:
                with self._lock:
                    self._links.discard(plain)
                    sock = self._tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
                    self._links.add(sock)
                sock.do_handshake()
            with sock.makefile("rb") as stream:
                while (seen := self._read(stream, ordinal)) is not None:
                    with self._lock:
                        self.requests.append(seen)
                        act = self.script.popleft() if self.script else self.default
                    act(Link(sock, self._closing), seen)
                    if self.hang_up_after_answer:
                        return
        except (OSError, HangUpError, ValueError):
            pass
        finally:
            with self._lock:
                self._links.discard(sock)
            sock.close()
            self.hung_up.release()

    def _read(self, stream: io.BufferedReader, ordinal: int) -> Seen | None:
        line = stream.readline()
        with self._lock:
            self.bytes_in += len(line)
        if not line.endswith(b"\r\n"):
            return None
        method, path, _ = line.decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while (line := stream.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        length = int(headers.get("content-length", "0"))
        body = stream.read(length)
        return Seen(method, path, headers, body, ordinal) if len(body) == length else None


@contextlib.contextmanager
def open_stage(tls: ssl.SSLContext | None = None) -> Iterator[Stage]:
    stage = Stage(tls)
    try:
        yield stage
    finally:
        stage.close()


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port whose queue of connections is full: dialling it waits, and nobody ever accepts."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as fillers:
        port: int = listener.getsockname()[1]
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port


def refused_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
