"""What was accepted, counted and can be waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import requests

from devtools.sandbox.process import Sandbox
from tests.devtools.sandbox_client import KEY, call, email, ids_of, send, tagged


def test_health(sandbox: Sandbox) -> None:
    assert call(sandbox, "GET", "/_sandbox/health").json() == {"status": "ok"}


def test_the_log_tells_what_was_accepted(sandbox: Sandbox) -> None:
    before = time.time()
    send(sandbox, [email("x")])
    [email_id] = ids_of(send(sandbox, [tagged("s-1", to=["a@mail.dev", "b@mail.dev"], html="<b>x</b>")], key="k"))
    [line] = sandbox.log()
    assert before <= line.pop("accepted_at") <= time.time()
    assert line == {
        "seq": 1,
        "id": email_id,
        "to": ["a@mail.dev", "b@mail.dev"],
        "from": "Acme <news@acme.dev>",
        "subject": "News",
        "tags": {"send_id": "s-1"},
        "idempotency_key": "k",
        "request": 2,
    }


def test_the_log_can_be_read_on_from_any_place(sandbox: Sandbox) -> None:
    for size in (3, 1, 4):
        send(sandbox, [email()] * size)
    for after in range(10):
        assert [line["seq"] for line in sandbox.log(after)] == list(range(after + 1, 9))


def test_an_empty_log(sandbox: Sandbox) -> None:
    assert list(sandbox.log()) == []
    assert list(sandbox.log(5)) == []


def test_a_long_log_is_streamed_whole(sandbox: Sandbox) -> None:
    for _ in range(200):
        send(sandbox, [email()] * 100)
    assert [line["seq"] for line in sandbox.log()] == list(range(1, 20_001))


def test_bodies_are_kept_when_asked_for(start: Callable[..., Sandbox]) -> None:
    sandbox = start("--rate", "0", "--latency-ms", "0", "--keep-bodies")
    [email_id] = ids_of(send(sandbox, [email(html="<b>x</b>", headers={"X-A": "1"})]))
    [line] = sandbox.log()
    assert (line["html"], line["text"], line["headers"]) == ("<b>x</b>", "Hello", {"X-A": "1"})
    assert call(sandbox, "GET", f"/emails/{email_id}", headers=KEY).json()["html"] == "<b>x</b>"


def test_doubles_are_found_by_the_send_id_tag(sandbox: Sandbox) -> None:
    send(sandbox, [tagged("a"), tagged("b"), email()])
    send(sandbox, [tagged("a"), tagged("c")])
    send(sandbox, [tagged("a")])
    stats = sandbox.stats()
    assert (stats["emails_accepted"], stats["send_ids"], stats["doubles"], stats["untagged"]) == (6, 3, 2, 1)
    assert stats["doubled_send_ids"] == ["a"]


def test_another_tag_can_name_a_send(start: Callable[..., Sandbox]) -> None:
    sandbox = start("--rate", "0", "--latency-ms", "0", "--send-id-tag", "ref")
    send(sandbox, [email(tags=[{"name": "ref", "value": "1"}])] * 2)
    assert sandbox.stats()["doubles"] == 1


def test_stats_add_up(sandbox: Sandbox) -> None:
    send(sandbox, [email()] * 10)
    send(sandbox, [email()] * 5)
    send(sandbox, [email("x")])
    send(sandbox, headers={"authorization": None})
    call(sandbox, "POST", "/broadcasts", headers=KEY)
    stats = sandbox.stats()
    assert stats["requests_received"] == sum(stats["by_status"].values()) == sum(stats["by_route"].values()) == 5
    assert stats["requests_counted"] == 3
    assert stats["by_status"] == {"200": 2, "401": 1, "404": 1, "422": 1}
    assert stats["by_route"] == {"POST /emails/batch": 4, "unknown": 1}
    assert stats["unknown_routes"] == ["POST /broadcasts"]
    assert (stats["items_per_batch_mean"], stats["items_per_batch_max"]) == (7.5, 10)
    assert sum(requests for _, requests, _ in stats["per_second"]) == 3
    assert sum(emails for _, _, emails in stats["per_second"]) == 15


def test_reset_forgets_everything(sandbox: Sandbox) -> None:
    send(sandbox, [tagged("a")], key="k")
    sandbox.fault("503")
    sandbox.reset()
    assert sandbox.stats()["requests_received"] == 0
    assert sandbox.faults() == []
    send(sandbox, [tagged("a")], key="k")
    stats = sandbox.stats()
    assert (stats["emails_accepted"], stats["doubles"], stats["replays"]) == (1, 0, 0)


def test_wait_returns_when_enough_was_accepted(sandbox: Sandbox) -> None:
    sender = threading.Thread(target=lambda: [send(sandbox, [email()] * 2) for _ in range(3)])
    sender.start()
    answer = sandbox.wait(emails=5, requests=3)
    sender.join()
    assert (answer["emails_accepted"], answer["requests_received"]) == (6, 3)


def test_wait_gives_up(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutError, match="1 e-mails"):
        sandbox.wait(emails=1, timeout=0.01)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/_sandbox/nothing", 404),
        ("GET", "/_sandbox/reset", 405),
        ("POST", "/_sandbox/wait", 404),
        ("GET", "/_sandbox/log?after=x", 400),
        ("GET", "/_sandbox/wait?timeout=soon", 400),
        ("GET", "/_sandbox/wait?timeout=nan", 400),
        ("DELETE", "/_sandbox/faults?id=x", 400),
    ],
)
def test_wrong_calls_are_explained(sandbox: Sandbox, method: str, path: str, status: int) -> None:
    answer = call(sandbox, method, path)
    assert answer.status_code == status
    assert answer.json()["message"]
    assert sandbox.stats()["requests_received"] == 0


def test_latency_delays_the_answer_not_the_acceptance(start: Callable[..., Sandbox]) -> None:
    sandbox = start("--rate", "0", "--latency-ms", "1000")
    done: list[float] = []

    def sender() -> None:
        send(sandbox)
        done.append(time.monotonic())

    senders = [threading.Thread(target=sender) for _ in range(4)]
    began = time.monotonic()
    for thread in senders:
        thread.start()
    sandbox.wait(emails=4)
    assert done == []
    for thread in senders:
        thread.join()
    assert min(done) - began >= 1.0
    assert max(done) - began < 3.0, "four answers, each a second late, must not queue behind each other"


def _health(sandbox: Sandbox) -> bool:
    try:
        return call(sandbox, "GET", "/_sandbox/health").ok
    except requests.ConnectionError:
        return False


def test_away_nothing_listens_and_nothing_is_forgotten(sandbox: Sandbox) -> None:
    send(sandbox, [tagged("s-1")], key="k")
    sandbox.away(0.5)
    while _health(sandbox):
        pass
    with pytest.raises(requests.ConnectionError, match="refused"):
        sandbox.stats()
    while not _health(sandbox):
        time.sleep(0.02)
    assert sandbox.stats()["emails_accepted"] == 1
    send(sandbox, [tagged("s-1")], key="k")
    assert (sandbox.stats()["emails_accepted"], sandbox.stats()["replays"]) == (1, 1)


def test_away_wants_a_number_of_seconds(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="at most 600"):
        sandbox.away(0)
