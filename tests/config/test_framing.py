"""`config.framing` and `config.pace` by themselves, on a pair of sockets and a clock that is set by hand."""

from __future__ import annotations

import collections
import io
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from gunicorn.http.errors import InvalidChunkSize

from config import framing, pace
from config.framing import Body, Framed
from config.pace import BODY, SLOW_SECONDS, Late, Pace, PacedSocket, paced


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


@pytest.fixture
def pair() -> Iterator[tuple[PacedSocket, socket.socket]]:
    near, far = socket.socketpair()
    with closing(paced(near)) as connection, closing(far):
        yield connection, far


def test_who_is_slow_is_asked_about_once(pair: tuple[PacedSocket, socket.socket]) -> None:
    connection, far = pair
    asked: list[bool] = []
    connection.keep(BODY)
    connection.when_slow = lambda: asked.append(bool(far.sendall(b"late")))
    far.sendall(b"at once")
    assert (connection.recv(100), asked) == (b"at once", [])
    assert (connection.recv(100), len(asked)) == (b"late", 1)
    connection.waited = 3.0
    far.sendall(b"more")
    assert (connection.recv(100), len(asked)) == (b"more", 1)


def test_who_may_not_be_waited_for_is_not(pair: tuple[PacedSocket, socket.socket]) -> None:
    connection, _ = pair

    def refuse() -> None:
        raise ZeroDivisionError

    connection.keep(BODY)
    connection.waited, connection.when_slow = SLOW_SECONDS, refuse
    with pytest.raises(ZeroDivisionError):
        connection.recv(100)
    connection.keep(BODY)
    assert connection.when_slow is None


def trickle(
    connection: PacedSocket, far: socket.socket, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, every: float
) -> int:
    """A byte comes `every` so many seconds. The seconds after which the client is given up."""
    real = socket.socket.recv

    def recv(self: socket.socket, size: int, flags: int = 0) -> bytes:
        limit = self.gettimeout()
        if limit is not None and limit < every:
            clock.now += limit
            raise TimeoutError
        clock.now += every
        return real(self, 1, flags)

    monkeypatch.setattr(socket.socket, "recv", recv, raising=False)
    far.sendall(b"x" * 4_000)
    with pytest.raises(Late):
        collections.deque(iter(lambda: connection.recv(1024), b""), maxlen=0)
    return round(clock.now)


@pytest.mark.parametrize(("every", "after"), [(29.0, 30), (31.0, 30), (1.0, 30), (0.01, 33)])
def test_a_byte_now_and_then_is_as_good_as_silence(
    pair: tuple[PacedSocket, socket.socket], clock: Clock, monkeypatch: pytest.MonkeyPatch, every: float, after: int
) -> None:
    pair[0].keep(BODY)
    assert trickle(*pair, clock, monkeypatch, every=every) == after


def test_only_waiting_for_the_client_counts(pair: tuple[PacedSocket, socket.socket], clock: Clock) -> None:
    """A list that we write slowly is read slowly: its sender is not at fault."""
    connection, far = pair
    connection.keep(Pace(grace=1.0, rate=1.0, silence=1.0))
    for _ in range(100):
        far.sendall(b"x")
        assert connection.recv(10) == b"x"
        clock.now += 60.0
    assert connection.waited == 0.0


class Stream(io.RawIOBase):
    """A body that comes in pieces, and then whatever `end` raises; nothing if it is None."""

    def __init__(self, *pieces: bytes, end: Exception | None = None) -> None:
        self.pieces, self.end, self.reads = list(pieces), end, 0
        self.timeouts: list[float | None] = [None]

    def read(self, size: int = -1) -> bytes:
        self.reads += 1
        if self.pieces:
            return self.pieces.pop(0)
        if self.end is not None:
            raise self.end
        return b""

    def gettimeout(self) -> float | None:
        return self.timeouts[-1]

    def settimeout(self, seconds: float | None) -> None:
        self.timeouts.append(seconds)


class Response:
    """gunicorn's, as far as it is asked."""

    closed = False
    status = ""

    def force_close(self) -> None:
        self.closed = True

    def start_response(self, status: str, headers: list[Any], exc_info: Any = None) -> None:
        self.status = status


def closes(stream: Stream, **environ: Any) -> bool:
    """Whether a refusal that reads nothing closes the connection."""

    def refuse(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("401 Unauthorized", [])
        return [b""]

    response = Response()
    Framed(refuse)({"wsgi.input": stream, "gunicorn.socket": stream, **environ}, response.start_response)
    assert response.status == "401 Unauthorized"
    assert stream.timeouts[-1] is None
    return response.closed


CHUNKED = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}


def test_what_is_left_of_a_body_is_read_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [b"x" * 10_000] * 100
    for environ in ({"CONTENT_LENGTH": "1000000"}, CHUNKED):
        stream = Stream(*whole)
        assert not closes(stream, **environ)
        assert stream.pieces == []
    monkeypatch.setattr(framing, "DRAIN_BYTES", 100_000)
    stream = Stream(*whole)
    assert closes(stream, **CHUNKED)
    assert len(stream.pieces) == 90
    stream = Stream(*whole)
    assert closes(stream, CONTENT_LENGTH="1000000")
    assert stream.reads == 0  # it is too long anyhow
    monkeypatch.setattr(framing, "DRAIN_SECONDS", -1.0)
    assert closes(Stream(b"x"), CONTENT_LENGTH="1")


def test_a_body_that_does_not_come_or_cannot_be_read_closes() -> None:
    for end in (None, TimeoutError(), ConnectionResetError(), InvalidChunkSize(b"zz")):
        assert closes(Stream(b"x", end=end), CONTENT_LENGTH="9")
    assert closes(Stream(end=InvalidChunkSize(b"zz")), **CHUNKED)
    assert closes(Stream(), HTTP_TRANSFER_ENCODING="chunked")  # of a server that does not mark the end


def test_where_there_is_no_body_nothing_is_read() -> None:
    for environ in ({}, {"CONTENT_LENGTH": ""}, {"CONTENT_LENGTH": "0"}):
        stream = Stream(b"GET / HTTP/1.1")  # the next request, on a server that does not mark the end
        assert not closes(stream, **environ)
        assert stream.reads == 0


def test_what_a_server_raises_is_an_error_of_the_connection_and_a_bug_stays_one() -> None:
    body = Body({"wsgi.input": Stream(b"x", end=InvalidChunkSize(b"ada@example.org")), **CHUNKED})
    assert body.read() == b"x"
    for _ in range(2):
        with pytest.raises(ConnectionError) as caught:
            body.read()
        assert "ada" not in str(caught.value)
    with pytest.raises(ZeroDivisionError):
        Body({"wsgi.input": Stream(end=ZeroDivisionError()), **CHUNKED}).read()
