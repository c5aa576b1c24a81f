"""One deadline for everything: look-up, connection, sending, a trickling answer. And what is known when it passes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

import pytest

from messaging.providers.http.client import HttpClient
from tests.messaging.providers import stage as staged
from tests.messaging.providers.asking import ENDPOINTS, GRACE, PATIENT, SHORT, asked, client, lost, stage
from tests.messaging.providers.stage import Response, Stage

__all__ = ["client", "stage"]  # fixtures


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
