"""Every fault, as a client meets it."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import requests

from devtools.sandbox.fault_kinds import KINDS
from devtools.sandbox.process import Sandbox
from tests.devtools.sandbox_client import (
    KEY,
    call,
    connected,
    email,
    ids_of,
    name_of,
    raw_batch,
    read_all,
    send,
    tagged,
)


@pytest.mark.parametrize(
    ("kind", "expected", "counted"),
    [
        ("401", (401, "validation_error"), 0),
        ("403_key", (403, "invalid_api_key"), 0),
        ("429", (429, "rate_limit_exceeded"), 0),
        ("500", (500, "application_error"), 1),
        ("503", (503, "service_unavailable"), 1),
        ("403_account", (403, "validation_error"), 1),
        ("422", (422, "validation_error"), 1),
        ("concurrent_409", (409, "concurrent_idempotent_requests"), 1),
    ],
)
def test_a_refusal(sandbox: Sandbox, kind: str, expected: tuple[int, str], counted: int) -> None:
    sandbox.fault(kind, count=1)
    assert name_of(send(sandbox, key="k")) == expected
    stats = sandbox.stats()
    assert (stats["requests_received"], stats["requests_counted"], stats["emails_accepted"]) == (1, counted, 0)
    assert send(sandbox, key="k").status_code == 200


@pytest.mark.parametrize("kind", ["401", "403_key", "403_account", "429", "500", "503", "422", "concurrent_409"])
def test_a_refusal_may_have_another_name(sandbox: Sandbox, kind: str) -> None:
    sandbox.fault(kind, name="new_name", message="Something new.")
    answer = send(sandbox)
    assert name_of(answer) == (int(kind.removeprefix("concurrent_")[:3]), "new_name")
    assert answer.json()["message"] == "Something new."


def test_429_with_and_without_retry_after(sandbox: Sandbox) -> None:
    sandbox.fault("429", count=1)
    sandbox.fault("429", count=1, retry_after=7)
    sandbox.fault("429", count=1, retry_after=None)
    assert [send(sandbox).headers.get("retry-after") for _ in range(3)] == ["1", "7", None]


def test_request_faults_strike_every_route(sandbox: Sandbox) -> None:
    [email_id] = ids_of(send(sandbox))
    sandbox.fault("503", count=1)
    assert call(sandbox, "GET", f"/emails/{email_id}", headers=KEY).status_code == 503
    assert call(sandbox, "GET", f"/emails/{email_id}", headers=KEY).status_code == 200


@pytest.mark.parametrize("kind", ["500", "503"])
def test_an_error_after_acceptance(sandbox: Sandbox, kind: str) -> None:
    sandbox.fault(kind, count=1, accept=True)
    assert send(sandbox, key="k").status_code == int(kind)
    assert [line["id"] for line in sandbox.log()] == ids_of(send(sandbox, key="k"))


def test_403_domain(sandbox: Sandbox) -> None:
    sandbox.fault("403_domain", domain="Bad.dev")
    bad = email() | {"from": "x@bad.dev"}
    assert send(sandbox).status_code == 200
    assert name_of(send(sandbox, [email(), bad])) == (403, "validation_error")


def test_422_only_for_a_text_or_a_sender(sandbox: Sandbox) -> None:
    sandbox.fault("422", contains="grüße")
    sandbox.fault("422", from_domain="bad.dev", contains="x")
    assert send(sandbox).status_code == 200
    for field in ("subject", "html", "text"):
        assert send(sandbox, [email(), email(**{field: "viele grüße"})]).status_code == 422
    assert send(sandbox, [email(text="x")]).status_code == 200
    assert send(sandbox, [email(text="x") | {"from": "a@bad.dev"}]).status_code == 422
    assert send(sandbox, [email(text="y") | {"from": "a@bad.dev"}]).status_code == 200


def test_bad_item(sandbox: Sandbox) -> None:
    sandbox.fault("bad_item", recipient="+bad", message="No such mailbox.")
    items = [email("a@mail.dev"), email("b+bad@mail.dev"), email("c@mail.dev")]
    strict = send(sandbox, items)
    assert (name_of(strict)[0], strict.json()["message"]) == (422, "No such mailbox.")
    permissive = send(sandbox, items, permissive=True)
    assert len(ids_of(permissive)) == 2
    assert permissive.json()["errors"] == [{"index": 1, "message": "No such mailbox."}]


def test_too_few_ids(sandbox: Sandbox) -> None:
    sandbox.fault("too_few_ids", count=1, missing=2)
    items = [tagged(str(n)) for n in range(5)]
    few = ids_of(send(sandbox, items, key="k"))
    assert len(few) == 3
    assert ids_of(send(sandbox, items, key="k"))[:3] == few
    assert sandbox.stats()["emails_accepted"] == 5


def test_cut_body(sandbox: Sandbox) -> None:
    sandbox.fault("cut_body", count=1)
    with connected(sandbox) as sock:
        sock.sendall(raw_batch(key="k"))
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert 0 < len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)
    assert len(ids_of(send(sandbox, key="k"))) == sandbox.stats()["emails_accepted"] == 1
    sandbox.fault("cut_body", count=1)
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        send(sandbox)


@pytest.mark.parametrize(("kind", "accepted", "counted"), [("drop_before", 0, 0), ("drop_after_accept", 1, 1)])
@pytest.mark.parametrize("reset", [False, True])
def test_dropped_connections(sandbox: Sandbox, kind: str, accepted: int, counted: int, *, reset: bool) -> None:
    sandbox.fault(kind, count=1, reset=reset)
    with connected(sandbox) as sock:
        sock.sendall(raw_batch(key="k"))
        if reset:
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        else:
            assert sock.recv(1) == b""
    stats = sandbox.stats()
    assert (stats["emails_accepted"], stats["requests_counted"]) == (accepted, counted)
    assert stats["by_status"] == {"reset" if reset else "dropped": 1}
    ids_of(send(sandbox, key="k"))
    assert sandbox.stats()["emails_accepted"] == 1


@pytest.mark.parametrize("accept", [False, True])
def test_hang(sandbox: Sandbox, *, accept: bool) -> None:
    sandbox.fault("hang", count=1, accept=accept)
    with connected(sandbox) as sock:
        sock.sendall(raw_batch(key="k"))
        sandbox.wait(requests=1)
        assert sandbox.stats()["emails_accepted"] == int(accept)
        assert send(sandbox, key="other").status_code == 200, "one that hangs does not hold up the others"
        assert send(sandbox, key="k").status_code == (409 if accept else 200)
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    # The client has left: the key now stands for what was accepted.
    assert send(sandbox, key="k").status_code == 200
    assert sandbox.stats()["emails_accepted"] == 2


def test_slow_goes_together_with_another_fault(sandbox: Sandbox) -> None:
    sandbox.fault("slow", extra_ms=200)
    sandbox.fault("500", count=1)
    answer = send(sandbox)
    assert (answer.status_code, answer.elapsed.total_seconds() >= 0.2) == (500, True)


def test_faults_strike_in_the_order_they_were_set(sandbox: Sandbox) -> None:
    sandbox.fault("503", count=1)
    sandbox.fault("500", count=2)
    assert [send(sandbox).status_code for _ in range(4)] == [503, 500, 500, 200]


def test_only_a_strike_uses_up_the_count(sandbox: Sandbox) -> None:
    sandbox.fault("422", count=1, contains="culprit")
    statuses = [send(sandbox, [email(subject=subject)]).status_code for subject in ("a", "culprit", "culprit")]
    assert statuses == [200, 422, 200]


def test_probability_follows_its_seed(sandbox: Sandbox) -> None:
    def run() -> list[int]:
        sandbox.reset()
        sandbox.fault("500", probability=0.3, seed=7)
        return [send(sandbox).status_code for _ in range(60)]

    statuses = run()
    assert statuses == run()
    assert 5 <= statuses.count(500) <= 35


def test_a_fault_ends_with_its_time(sandbox: Sandbox) -> None:
    sandbox.fault("503", seconds=0.4)
    statuses: list[int] = []
    while not statuses or statuses[-1] != 200:
        statuses.append(send(sandbox).status_code)
    assert statuses[0] == 503
    assert sandbox.faults() == []


def test_faults_are_shown_and_cleared(sandbox: Sandbox) -> None:
    first = sandbox.fault("429", count=3, retry_after=2)
    second = sandbox.fault("slow", extra_ms=1, seconds=60)
    send(sandbox)
    shown = sandbox.faults()
    assert shown[0] == {
        "id": first,
        "fault": "429",
        "retry_after": 2,
        "probability": 1.0,
        "count_left": 2,
        "seconds_left": None,
        "hits": 1,
    }
    assert 0 < shown[1]["seconds_left"] <= 60
    assert call(sandbox, "DELETE", f"/_sandbox/faults?id={first}").json() == {"removed": 1}
    assert [fault["id"] for fault in sandbox.faults()] == [second]
    sandbox.clear_faults()
    assert sandbox.faults() == []
    assert send(sandbox).status_code == 200


def test_a_list_is_set_whole_or_not_at_all(sandbox: Sandbox) -> None:
    answer = call(sandbox, "POST", "/_sandbox/faults", json=[{"fault": "500"}, {"fault": "nonsense"}])
    assert answer.status_code == 400
    assert sandbox.faults() == []
    answer = call(sandbox, "POST", "/_sandbox/faults", json=[{"fault": "500"}, {"fault": "503"}])
    assert (answer.status_code, len(answer.json()["ids"])) == (201, 2)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"fault": "502"}, "Unknown fault '502'. Known: 401, 403_account, 403_domain, 403_key,"),
        ({"count": 1}, "Unknown fault None"),
        ("500", "A fault is an object"),
        ({"fault": "500", "retry_after": 1}, "Fault 500 has no field 'retry_after'. It has: accept, count"),
        ({"fault": "slow"}, "needs the field extra_ms"),
        ({"fault": "403_domain"}, "needs the field domain"),
        ({"fault": "bad_item"}, "needs the field recipient"),
        ({"fault": "slow", "extra_ms": "5"}, "must be milliseconds"),
        ({"fault": "429", "retry_after": -1}, "seconds, or null"),
        ({"fault": "500", "count": 0}, "at least 1"),
        ({"fault": "500", "count": True}, "at least 1"),
        ({"fault": "500", "seconds": 0}, "above 0"),
        ({"fault": "500", "probability": 1.5}, "at most 1"),
        ({"fault": "500", "seed": "x"}, "whole number"),
        ({"fault": "500", "accept": "yes"}, "true or false"),
    ],
)
def test_a_wrong_fault_is_explained(sandbox: Sandbox, fault: Any, says: str) -> None:
    answer = call(sandbox, "POST", "/_sandbox/faults", json=fault)
    assert answer.status_code == 400
    assert says in answer.json()["message"]
    assert sandbox.faults() == []


def test_an_unknown_fault_lists_all_the_known_ones(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="Unknown fault") as caught:
        sandbox.fault("gremlin")
    assert all(kind in str(caught.value) for kind in KINDS)
    assert call(sandbox, "GET", "/_sandbox/faults").json()["known"].keys() == KINDS.keys()


def test_faults_that_are_not_json(sandbox: Sandbox) -> None:
    assert call(sandbox, "POST", "/_sandbox/faults", data=b"{").status_code == 400


def test_a_client_that_resets_does_no_harm(sandbox: Sandbox) -> None:
    sandbox.fault("hang", count=1)
    with connected(sandbox) as sock:
        sock.sendall(raw_batch())
        sandbox.wait(requests=1)
        sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER: closing sends RST
    assert send(sandbox).status_code == 200
