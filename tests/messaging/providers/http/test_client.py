"""The HTTP client: one attempt, one deadline, and the truth about whether a byte has left."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from messaging.providers.http import client as http_client
from messaging.providers.http import wire
from messaging.providers.http.client import ForbiddenEndpointError, HttpClient, Reply
from tests.messaging.providers import stage as staged
from tests.messaging.providers.asking import OK, PATIENT, ask, asked, client, lost, stage
from tests.messaging.providers.stage import Link, Response, Seen, Stage

__all__ = ["client", "stage"]  # fixtures


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


def test_an_answer_to_a_request_that_was_not_sent_is_no_answer(
    client: HttpClient, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A farewell and a reset arrive after the pool's check: urllib3 would hand over the farewell as the answer."""
    answered = threading.Event()

    def answer_say_farewell_and_reset(link: Link, seen: Seen) -> None:
        OK(link, seen)
        assert answered.wait(PATIENT)
        link.write(Response(403, b"go away").wire())
        staged.reset(link, seen)

    stage.script.append(answer_say_farewell_and_reset)
    asked(client)
    answered.set()
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
        patched.setattr(http_client, "_read", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            ask(client)
    assert asked(client).body == b"{}"
    assert stage.connections == 2


def _interrupt(_: object) -> None:
    raise KeyboardInterrupt


def test_more_threads_than_kept_connections(client: HttpClient, stage: Stage) -> None:
    replies: list[Reply] = []
    threads = [threading.Thread(target=lambda: replies.append(asked(client))) for _ in range(2 * http_client.POOL_SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply.status for reply in replies] == [200] * len(threads)
    assert len(stage.requests) == len(threads)


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
    stage.script.append(staged.reply(Response(200, b" " * (2 * http_client.MAX_ANSWER_BYTES))))
    reply = asked(client)
    assert (len(reply.body), reply.complete) == (http_client.MAX_ANSWER_BYTES, False)
    asked(client)
    assert stage.connections == 2


def test_a_header_that_would_smuggle_another_is_refused(client: HttpClient, stage: Stage) -> None:
    with pytest.raises(ValueError, match="header"):
        client.request("POST", "/x", headers={"X-A": "1\r\nX-B: 2"}, timeout=PATIENT)
    assert stage.connections == 0


# -- fork --------------------------------------------------------------------------------------------------------------

FORK = """
import os, sys
from messaging.providers.http.client import HttpClient, Reply

client = HttpClient(sys.argv[1], [("POST", "/x")])

def ask(who):
    assert isinstance(client.request("POST", "/x", headers={}, body=who, timeout=20.0), Reply)

ask(b"parent")
done, told = os.pipe()
child = os.fork()
if child == 0:
    ask(b"child")
    ask(b"child")
    os.write(told, b".")
    sys.stdin.read()  # lives until the test has seen enough
    os._exit(0)
os.read(done, 1)
ask(b"parent")
client.close()
print("closed", flush=True)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_worker_opens_connections_of_its_own(stage: Stage) -> None:
    command, root = [sys.executable, "-c", FORK, stage.url], Path(__file__).parents[4]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "closed\n"
        assert stage.hung_up.acquire(timeout=PATIENT), "the child holds no copy of the parent's connection"
        process.stdin.close()
    assert process.returncode == 0
    assert [(seen.body, seen.connection) for seen in stage.requests] == [
        (b"parent", 1),
        (b"child", 2),
        (b"child", 2),
        (b"parent", 1),
    ]
