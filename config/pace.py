"""How long a client may keep a thread waiting: a byte now and then is as good as silence."""

from __future__ import annotations

import errno
import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Pace:
    """`grace` seconds of waiting in all, one more for each `rate` bytes that came, and never more than `silence` at once.

    Only waiting counts: a list that we are slow to read is not a slow list.
    """

    grace: float
    rate: float
    silence: float


#: Of a request's head, and of its body.
HEAD = Pace(grace=15.0, rate=1000.0, silence=15.0)
BODY = Pace(grace=30.0, rate=1024.0, silence=30.0)
#: Seconds of waiting in all after which a client counts as slow.
SLOW_SECONDS = 0.5


class Late(TimeoutError):
    """The client is too slow. For gunicorn a connection that was reset: it is nobody's fault here, and no log line."""

    def __init__(self) -> None:
        super().__init__(errno.ECONNRESET, "the client is too slow")


class PacedSocket(socket.socket):
    """A connection that is read at a pace. A time-out that somebody sets on it bounds each single wait as well."""

    pace = Pace(grace=math.inf, rate=math.inf, silence=math.inf)
    waited = 0.0
    received = 0
    #: Whether the request on it was read to its end, so that nothing is lost by closing.
    whole = False
    #: Called once before a slow client is waited for any longer. What it raises ends the reading.
    when_slow: Callable[[], object] | None = None

    def keep(self, pace: Pace) -> None:
        """From here on, begin to count."""
        self.pace, self.waited, self.received, self.when_slow = pace, 0.0, 0, None

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        before = self.gettimeout()
        left = self.pace.grace + self.received / self.pace.rate - self.waited
        patience = min(left, self.pace.silence, math.inf if before is None else before)
        if patience <= 0:
            raise Late
        data = None
        if self.when_slow is not None:
            data = self._within(min(patience, max(0.0, SLOW_SECONDS - self.waited)), size, flags)
            if data is None:
                when_slow, self.when_slow = self.when_slow, None
                when_slow()
        if data is None:
            data = self._within(patience, size, flags)
        if data is None:
            raise Late
        self.received += len(data)
        return data

    def _within(self, seconds: float, size: int, flags: int) -> bytes | None:
        """None: nothing came in time."""
        before = self.gettimeout()
        start = time.monotonic()
        self.settimeout(None if seconds == math.inf else seconds)
        try:
            return super().recv(size, flags)
        except (TimeoutError, BlockingIOError):  # the latter for no seconds at all
            return None
        finally:
            self.waited += time.monotonic() - start
            self.settimeout(before)


def paced(plain: socket.socket) -> PacedSocket:
    """The same connection, paced. `plain` is no longer it."""
    before = plain.gettimeout()
    connection = PacedSocket(fileno=plain.detach())
    connection.settimeout(before)
    return connection


def see_off(connection: PacedSocket, seconds: float) -> None:
    """End a connection so that the client still hears the answer; what he sends meanwhile is thrown away, for so long."""
    connection.keep(Pace(grace=seconds, rate=math.inf, silence=seconds))
    _quietly(connection.shutdown, socket.SHUT_WR)
    if not connection.whole:
        _quietly(_read_on, connection)
    _quietly(connection.shutdown, socket.SHUT_RDWR)


def _read_on(connection: PacedSocket) -> None:
    connection.settimeout(None)
    while connection.recv(64 * 1024):
        pass


def _quietly(step: Any, argument: Any) -> None:
    try:
        step(argument)
    except OSError:  # it is gone already: all that was wanted
        return
