"""The HTTP client: one attempt, one deadline, and the truth about whether a byte has left."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messaging.providers import http, wire
from messaging.providers.http import ForbiddenEndpointError, HttpClient, NoReply, Reply
from tests.messaging.providers import stage as staged
from tests.messaging.providers.stage import Link, Response, Seen, Stage, open_stage

#: Seconds: more than enough; little; and how late giving up may be.
PATIENT, SHORT, GRACE = 20.0, 0.3, 0.5

ENDPOINTS = [("POST", "/x"), ("GET", "/x/*")]
OK = staged.reply(Response(200, b"{}"))


@pytest.fixture
def stage() -> Iterator[Stage]:
    with open_stage() as stage:
        stage.default = OK
        yield stage


@pytest.fixture
def client(stage: Stage) -> Iterator[HttpClient]:
    with contextlib.closing(HttpClient(stage.url, ENDPOINTS)) as client:
        yield client


def ask(client: HttpClient, body: bytes = b"hello", timeout: float = PATIENT) -> Reply | NoReply:
    return client.request("POST", "/x", headers={}, body=body, timeout=timeout)


def asked(client: HttpClient, **kwargs: Any) -> Reply:
    reply = ask(client, **kwargs)
    assert isinstance(reply, Reply), reply
    return reply


def lost(client: HttpClient, **kwargs: Any) -> tuple[bool, str]:
    """(wrote, code) of a request that must not be answered, in time."""
    started = time.monotonic()
    reply = ask(client, **kwargs)
    assert time.monotonic() - started < kwargs.get("timeout", PATIENT) + GRACE
    assert isinstance(reply, NoReply), reply
    return reply.wrote, reply.code


# -- connections -------------------------------------------------------------------------------------------------------


def test_a_connection_is_kept(client: HttpClient, stage: Stage) -> None:
    for _ in range(5):
        asked(client)
    assert [seen.connection for seen in stage.requests] == [1] * 5


def test_an_error_answer_keeps_the_connection_too(client: HttpClient, stage: Stage) -> None:
    stage.script.append(staged.reply(Response(500, b"x" * 100_000)))
    assert asked(client).status == 500
    asked(client)
    assert stage.connections == 1


def test_a_connection_that_the_server_closed_meanwhile_is_dialled_anew(client: HttpClient, stage: Stage) -> None:
    stage.hang_up_after_answer = True
    for _ in range(3):
        asked(client)
        assert stage.hung_up.acquire(timeout=PATIENT)
    assert [seen.connection for seen in stage.requests] == [1, 2, 3]


def test_a_connection_that_closes_under_the_request_is_not_tried_again(client: HttpClient, stage: Stage) -> None:
    asked(client)
    stage.script.append(staged.drop)
    assert lost(client) == (True, "answer_failed")
    assert len(stage.requests) == 2
    assert stage.connections == 1


def test_a_dead_connection_that_the_pool_did_not_notice(
    client: HttpClient, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end arrives between the pool's check and the first byte: bytes were handed over, so nobody knows."""
    stage.hang_up_after_answer = True
    asked(client)
    assert stage.hung_up.acquire(timeout=PATIENT)
    monkeypatch.setattr(wire.TimedConnection, "is_connected", True)
    wrote, code = lost(client)
    assert (wrote, code) == (True, "answer_failed")
    assert len(stage.requests) == 1
    assert stage.connections == 1, "not dialled again within the call"


def test_a_reset_connection_that_the_pool_did_not_notice(
    client: HttpClient, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel already refuses the first byte: nothing was sent, and that is what is said."""

    def answer_and_reset(link: Link, seen: Seen) -> None:
        OK(link, seen)
        staged.reset(link, seen)

    stage.script.append(answer_and_reset)
    asked(client)
    assert stage.hung_up.acquire(timeout=PATIENT)
    monkeypatch.setattr(wire.TimedConnection, "is_connected", True)
    assert lost(client) == (False, "send_failed")
    assert len(stage.requests) == 1


def test_an_idle_connection_is_not_trusted(client: HttpClient, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(client)
    monkeypatch.setattr(wire, "MAX_IDLE", 0.0)
    asked(client)
    assert stage.connections == 2


def test_a_farewell_on_an_idle_connection_is_not_an_answer(client: HttpClient, stage: Stage) -> None:
    def answer_and_say_farewell(link: Link, _: Seen) -> None:
        link.write(Response(200, b"{}").wire())
        link.write(Response(408, b"too idle").wire())
        raise staged.HangUpError

    stage.script.append(answer_and_say_farewell)
    asked(client)
    assert stage.hung_up.acquire(timeout=PATIENT)
    assert asked(client).status == 200
    assert len(stage.requests) == 2


@pytest.mark.parametrize("status", [102, 103, 204, 304])
def test_what_follows_an_answer_without_a_body_is_not_the_next_answer(
    client: HttpClient, stage: Stage, status: int
) -> None:
    late = b"HTTP/1.1 %d X\r\n\r\n" % status + Response(200, b'"late"').wire()
    stage.script.append(lambda link, _: link.write(late))
    assert asked(client).status == status
    assert asked(client).body == b"{}"
    assert stage.connections == 2


def test_an_interrupted_request_does_not_spoil_the_next(
    client: HttpClient, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's shutdown may interrupt a thread anywhere."""
    stage.script.append(staged.reply(Response(200, b'"mine"')))
    with monkeypatch.context() as patched:
        patched.setattr(http, "_read", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask(client)
    assert asked(client).body == b"{}"
    assert stage.connections == 2


def _interrupt(_: object) -> None:
    raise KeyboardInterrupt


def test_more_threads_than_kept_connections(client: HttpClient, stage: Stage) -> None:
    replies: list[Reply] = []
    threads = [threading.Thread(target=lambda: replies.append(asked(client))) for _ in range(2 * http.POOL_SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply.status for reply in replies] == [200] * len(threads)
    assert len(stage.requests) == len(threads)


# -- the deadline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [staged.hang, staged.trickled_headers(Response(200, b"{}"))])
def test_no_status_line_in_time(client: HttpClient, stage: Stage, act: staged.Act) -> None:
    stage.default = act
    assert lost(client, timeout=SHORT) == (True, "answer_timeout")


def test_a_trickled_body_is_incomplete(client: HttpClient, stage: Stage) -> None:
    stage.default = staged.trickled_body(Response(200, b"{" + b" " * 200 + b"}"))
    started = time.monotonic()
    reply = asked(client, timeout=SHORT)
    assert time.monotonic() - started < SHORT + GRACE
    assert not reply.complete
    with pytest.raises(ValueError, match="cut"):
        reply.json()


def test_endless_interim_answers(client: HttpClient, stage: Stage) -> None:
    stage.default = lambda link, _: link.trickle(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, every=0.001)
    assert lost(client, timeout=SHORT) == (True, "answer_timeout")


def test_a_server_that_does_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        client = HttpClient(f"http://127.0.0.1:{deaf.getsockname()[1]}", ENDPOINTS)
        assert lost(client, body=b"x" * 30_000_000, timeout=SHORT) == (True, "send_timeout")


def test_a_connection_that_nobody_takes() -> None:
    with staged.deaf_port() as port:
        client = HttpClient(f"http://127.0.0.1:{port}", ENDPOINTS)
        assert lost(client, timeout=SHORT) == (False, "connect_timeout")


def test_the_deadline_bounds_a_kept_connection_anew(client: HttpClient, stage: Stage) -> None:
    asked(client, timeout=SHORT)
    stage.script.append(lambda link, _: link.trickle(Response(200, b"{}").wire(), every=SHORT / 30))
    started = time.monotonic()
    asked(client)
    assert time.monotonic() - started > SHORT, "longer than the time of the first exchange"
    assert stage.connections == 1


# -- names -------------------------------------------------------------------------------------------------------------


def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolve(monkeypatch, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    assert lost(HttpClient("http://provider.test", ENDPOINTS)) == (False, "dns_failed")


def test_a_look_up_that_hangs_is_given_up_and_its_late_result_dropped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, finished, calls = threading.Event(), threading.Semaphore(0), []
    real = socket.getaddrinfo

    def slow(host: str, port: int, **kwargs: Any) -> Any:
        if kwargs.get("flags"):
            return real(host, port, **kwargs)
        calls.append(host)
        assert release.wait(PATIENT)
        finished.release()
        return real("127.0.0.1", port, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with contextlib.closing(HttpClient(f"http://provider.test:{stage.port}", ENDPOINTS)) as client:
        assert lost(client, timeout=SHORT) == (False, "dns_timeout")
        assert lost(client, timeout=SHORT) == (False, "dns_timeout")
        assert calls == ["provider.test"], "one look-up for all who wait"
        release.set()
        assert finished.acquire(timeout=PATIENT)
        assert stage.connections == 0
        asked(client)
    assert len(stage.requests) == 1


def test_the_next_address_is_tried_and_counts_as_the_same_attempt(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = ("127.0.0.1", staged.refused_port())
    with staged.deaf_port() as port:
        _resolve(monkeypatch, [bad, ("127.0.0.1", port), ("127.0.0.1", stage.port)])
        with contextlib.closing(HttpClient("http://provider.test", ENDPOINTS)) as client:
            asked(client, timeout=2.0)
    assert len(stage.requests) == 1


def test_a_name_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolve(monkeypatch, [])
    assert lost(HttpClient("http://provider.test", ENDPOINTS)) == (False, "connect_failed")


def _resolve(monkeypatch: pytest.MonkeyPatch, found: list[tuple[str, int]] | OSError) -> None:
    """Every name has these addresses, or fails so."""

    def fake(host: str, port: int, **kwargs: Any) -> Any:
        if kwargs.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "not an address")
        if isinstance(found, OSError):
            raise found
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", fake)


# -- what may be asked, and what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/x"),
        ("POST", "/x/"),
        ("POST", "/x/1"),
        ("PUT", "/x"),
        ("post", "/x"),
        ("POST", "/y"),
        ("POST", "//x"),
        ("POST", "/x?a=1"),
        ("POST", "/x#a"),
        ("POST", "/x\n"),
        ("POST", "@evil.test/x"),
        ("GET", "/x/"),
        ("GET", "/x/1/2"),
        ("GET", "/x/.."),
        ("GET", "/x/%2e%2e"),
        ("GET", "/x/1?all=1"),
    ],
)
def test_other_endpoints_are_refused(client: HttpClient, stage: Stage, method: str, path: str) -> None:
    with pytest.raises(ForbiddenEndpointError):
        client.request(method, path, headers={}, timeout=PATIENT)
    assert stage.connections == 0


def test_a_star_is_one_segment(client: HttpClient, stage: Stage) -> None:
    client.request("GET", "/x/4ef9a417-02e9-4d39-ad75-9611e0fcc33c", headers={}, timeout=PATIENT)
    assert stage.requests[0].path == "/x/4ef9a417-02e9-4d39-ad75-9611e0fcc33c"


def test_a_redirect_is_an_answer(client: HttpClient, stage: Stage) -> None:
    stage.default = staged.reply(Response(308, b"", {"location": stage.url + "/y"}))
    assert asked(client).status == 308
    assert len(stage.requests) == 1


def test_the_environment_and_cookies_change_nothing(
    client: HttpClient, stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("default login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{staged.refused_port()}")
    stage.default = staged.reply(Response(200, b"{}", {"set-cookie": "a=b; path=/"}))
    asked(client)
    asked(client)
    assert set(stage.requests[1].headers) <= {"host", "user-agent", "accept-encoding", "content-length"}


def test_a_large_answer_is_not_read_to_its_end(client: HttpClient, stage: Stage) -> None:
    stage.script.append(staged.reply(Response(200, b" " * (2 * http.MAX_ANSWER_BYTES))))
    reply = asked(client)
    assert (len(reply.body), reply.complete) == (http.MAX_ANSWER_BYTES, False)
    asked(client)
    assert stage.connections == 2


def test_a_header_that_would_smuggle_another_is_refused(client: HttpClient, stage: Stage) -> None:
    with pytest.raises(ValueError, match="header"):
        client.request("POST", "/x", headers={"X-A": "1\r\nX-B: 2"}, timeout=PATIENT)
    assert stage.connections == 0


# -- fork --------------------------------------------------------------------------------------------------------------

FORK = """
import os, sys
from messaging.providers.http import HttpClient, Reply

client = HttpClient(sys.argv[1], [("POST", "/x")])

def ask(who):
    assert isinstance(client.request("POST", "/x", headers={}, body=who, timeout=20.0), Reply)

ask(b"parent")
child = os.fork()
if child == 0:
    ask(b"child")
    ask(b"child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
ask(b"parent")
"""


def test_a_forked_worker_opens_connections_of_its_own(stage: Stage) -> None:
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", FORK, stage.url], cwd=root, check=True, timeout=60)
    assert [(seen.body, seen.connection) for seen in stage.requests] == [
        (b"parent", 1),
        (b"child", 2),
        (b"child", 2),
        (b"parent", 1),
    ]
