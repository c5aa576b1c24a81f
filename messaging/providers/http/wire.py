"""The socket under one exchange: it keeps one deadline for everything, and knows whether a byte has left.

A time-out of `requests` or `urllib3` is per socket operation: a server that trickles a byte a second can hold a thread
for as long as it likes. Here every operation (look-up, connect, handshake, each send, each receive) gets only what is
left of the exchange's own time. That needs no watchdog thread, so nothing is torn out of another thread's hands and
nothing has to survive a fork.
"""

from __future__ import annotations

import io
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NewConnectionError

#: The share of an exchange's time in which it must be connected. A connection that takes longer is given up while
#: "nothing was sent" still holds; a request that starts with little time left would end as "nobody knows".
CONNECT_SHARE = 0.5

#: Seconds after which an idle connection is not trusted again. Balancers and address translators forget connections
#: after a minute or more, some without a word; what is written into such a connection ends as "nobody knows".
MAX_IDLE = 30.0


class Stage(StrEnum):
    """How far an exchange has come. Names the failure (`dns_failed`, `answer_timeout`); proves nothing by itself."""

    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    SEND = "send"
    ANSWER = "answer"


AddressInfo = tuple[int, int, int, str, Any]


class Resolver:
    """Name look-ups that can be given up. `getaddrinfo` has no time-out and cannot be interrupted.

    A look-up runs in a thread of its own, at most one for each name at a time; whoever waits for the same name waits
    for the same look-up. A result that comes too late is dropped: nobody is left to connect with it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], Future[Sequence[AddressInfo]]] = {}

    def lookup(self, host: str, port: int, timeout: float) -> Sequence[AddressInfo]:
        try:  # an address needs no look-up and no thread
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            pass
        with self._lock:
            future = self._running.get((host, port))
            if future is None:
                future = self._running[host, port] = Future()
                threading.Thread(target=self._run, args=(host, port, future), name="dns", daemon=True).start()
        return future.result(timeout)

    def _run(self, host: str, port: int, future: Future[Sequence[AddressInfo]]) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as err:
            self._forget(host, port)
            future.set_exception(err)
        else:
            self._forget(host, port)
            future.set_result(found)

    def _forget(self, host: str, port: int) -> None:
        with self._lock:
            del self._running[host, port]


@dataclass(slots=True)
class Exchange:
    """One request and its answer: the time they have (monotonic), how far they came, whether a byte was handed over."""

    timeout: float
    resolver: Resolver
    stage: Stage = Stage.DNS
    wrote: bool = False
    _started: float = field(default_factory=time.monotonic)

    def remaining(self) -> float:
        """Seconds left, for an operation of the present stage. Raises TimeoutError when there are none."""
        left = self._deadline() - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def expired(self) -> bool:
        return time.monotonic() >= self._deadline()

    def _deadline(self) -> float:
        connected = self.stage in (Stage.SEND, Stage.ANSWER)
        return self._started + (self.timeout if connected else self.timeout * CONNECT_SHARE)


#: The exchange of the running thread. urllib3 offers no argument that reaches the connection.
current_exchange: ContextVar[Exchange] = ContextVar("current_exchange")


class _TimedReader(io.RawIOBase):
    """Receives under the exchange's deadline. Closing it lets go of the socket (which http.client may close first)."""

    def __init__(self, sock: socket.socket, exchange: Exchange) -> None:
        self._sock = sock
        self._raw = cast("io.RawIOBase", sock.makefile("rb", buffering=0))
        self._exchange = exchange

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._exchange.remaining())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class TimedSocket:
    """What http.client and urllib3 need of a connected socket, each operation bounded by the exchange's deadline."""

    def __init__(self, sock: socket.socket, exchange: Exchange) -> None:
        self._sock = sock
        self._exchange = exchange
        self._last_used = time.monotonic()

    def serve(self, exchange: Exchange) -> None:
        """A kept connection takes up its next exchange."""
        exchange.stage = Stage.SEND
        self._exchange = exchange

    def idle(self) -> float:
        return time.monotonic() - self._last_used

    def sendall(self, data: bytes) -> None:
        exchange = self._exchange
        view = memoryview(data).cast("B")
        while view:
            self._sock.settimeout(exchange.remaining())
            # A plain send that fails has handed over nothing. A TLS send that fails may have: take it for written.
            exchange.wrote = exchange.wrote or isinstance(self._sock, ssl.SSLSocket)
            sent = self._sock.send(view)
            exchange.wrote = True
            view = view[sent:]

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb", "http.client reads answers, and nothing else, through a file"
        if self._exchange.wrote:  # urllib3 looks for an answer even if the connection was lost before the first byte
            self._exchange.stage = Stage.ANSWER
        self._last_used = time.monotonic()
        return io.BufferedReader(_TimedReader(self._sock, self._exchange))

    def settimeout(self, value: float | None) -> None:
        """Ignored: urllib3 sets its own time-outs here, and the deadline is stricter."""

    def fileno(self) -> int:
        return self._sock.fileno()

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()


class TimedConnection(HTTPConnection):
    """An urllib3 connection that dials under the exchange's deadline and speaks through a `TimedSocket`."""

    def _new_conn(self) -> socket.socket:
        exchange = current_exchange.get()
        try:
            return self._dial(exchange)
        except (OSError, UnicodeError) as err:
            # Never a bare OSError: urllib3 takes ECONNRESET in this place for "the answer may be there already".
            raise NewConnectionError(self, type(err).__name__) from err

    def _dial(self, exchange: Exchange) -> socket.socket:
        exchange.stage = Stage.DNS
        addresses = exchange.resolver.lookup(self._dns_host.strip("[]"), self.port, exchange.remaining())
        exchange.stage = Stage.CONNECT
        failure: OSError = OSError("the name has no address")
        for tried, (family, kind, proto, _, address) in enumerate(addresses):
            try:
                sock = socket.socket(family, kind, proto)
            except OSError as err:  # e.g. a machine without IPv6
                failure = err
                continue
            try:
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                # An address that swallows packets must leave time for the next one.
                sock.settimeout(exchange.remaining() / (len(addresses) - tried))
                sock.connect(address)
                sock.settimeout(exchange.remaining())  # for a handshake; Python bounds it as a whole
            except BaseException as err:
                sock.close()
                if not isinstance(err, OSError):
                    raise
                failure = err
            else:
                exchange.stage = Stage.TLS
                return sock
        raise failure

    def connect(self) -> None:
        super().connect()
        exchange = current_exchange.get()
        exchange.stage = Stage.SEND
        self.sock = cast("socket.socket", TimedSocket(self.sock, exchange))

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:
            cast("TimedSocket", self.sock).serve(current_exchange.get())
        super().request(*args, **kwargs)

    @property
    def is_connected(self) -> bool:
        """Asked by the pool before it hands out a kept connection; False: dial anew."""
        return super().is_connected and cast("TimedSocket", self.sock).idle() < MAX_IDLE


class TimedTLSConnection(TimedConnection, HTTPSConnection):
    """The same over TLS: certificate and host name are verified by the context of the pool."""


class TimedPool(HTTPConnectionPool):
    ConnectionCls = TimedConnection


class TimedTLSPool(HTTPSConnectionPool):
    ConnectionCls = TimedTLSConnection
