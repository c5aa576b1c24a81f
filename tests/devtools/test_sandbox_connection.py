"""HTTP as it is on the wire."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from devtools.sandbox.connection import MAX_BODY
from devtools.sandbox.process import Sandbox
from tests.devtools.sandbox_client import connected, email, raw_batch, read_all, send

CLOSE = "connection: close\r\n"


def test_pipelined_requests_are_answered_in_order(sandbox: Sandbox) -> None:
    sandbox.fault("slow", count=1, extra_ms=100)
    with connected(sandbox) as sock:
        sock.sendall(raw_batch() + raw_batch([email("x")]) + raw_batch(extra=CLOSE))
        answer = read_all(sock)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"422", b"200"]
    assert answer.count(b"connection: close") == 1


def test_a_request_in_small_pieces(sandbox: Sandbox) -> None:
    with connected(sandbox) as sock:
        for byte in raw_batch(extra=CLOSE):
            sock.sendall(bytes([byte]))
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_chunked_request(sandbox: Sandbox) -> None:
    head, _, body = raw_batch(extra=CLOSE).partition(b"\r\n\r\n")
    head = head[: head.index(b"content-length")] + b"transfer-encoding: chunked"
    with connected(sandbox) as sock:
        sock.sendall(head + b"\r\n\r\n" + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK\r\n")


def test_expect_100_continue(sandbox: Sandbox) -> None:
    head, _, body = raw_batch(extra=CLOSE + "expect: 100-continue\r\n").partition(b"\r\n\r\n")
    with connected(sandbox) as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "junk", [b"hello\r\n\r\n", b"GET / SPAM/9\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n"]
)
def test_what_is_not_http(sandbox: Sandbox, junk: bytes) -> None:
    with connected(sandbox) as sock:
        sock.sendall(junk)
        assert read_all(sock).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert send(sandbox).status_code == 200


def test_a_body_above_the_limit(sandbox: Sandbox) -> None:
    head = raw_batch().partition(b"content-length")[0]
    with connected(sandbox) as sock:
        sock.sendall(head + b"content-length: %d\r\n\r\n" % (MAX_BODY + 1))
        sock.sendall(b" " * MAX_BODY)
        assert sandbox.stats()["requests_received"] == 0
        sock.sendall(b" ")
        assert read_all(sock).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_leaves_in_the_middle(sandbox: Sandbox) -> None:
    with connected(sandbox) as sock:
        sock.sendall(raw_batch()[:-5])
    assert sandbox.stats()["requests_received"] == 0


def test_a_reader_that_stops_holds_up_nobody(start: Callable[..., Sandbox]) -> None:
    sandbox = start("--rate", "0", "--latency-ms", "0", "--keep-bodies")
    for _ in range(100):
        send(sandbox, [email(html="x" * 2000)] * 100)
    with connected(sandbox) as sock:
        sock.sendall(b"GET /_sandbox/log HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert sock.recv(100)  # 20 MB follow, more than any socket buffers
        assert send(sandbox).status_code == 200
        assert read_all(sock).endswith(b"0\r\n\r\n")
