"""A turn that dies of a bug: a dead letter with its place, and no send is lost or doubled."""

from __future__ import annotations

from queue import PriorityQueue
from typing import Any

import dramatiq
import pytest
import redis
from django.db import OperationalError
from dramatiq.broker import MessageProxy
from dramatiq.worker import WorkerThread

import messaging.tasks  # noqa: F401
from core.models import DeadLetter
from messaging.dispatch import turn
from messaging.domain.rails import Channel, Rail, actor_name, queue_name
from messaging.ledger import claim
from messaging.models import Send
from tests.factories import make_tenant, statuses, submit_some
from tests.rig import Rig

QUEUE = queue_name(Channel.EMAIL, Rail.TRANSACTIONAL)
ACTOR = actor_name(Channel.EMAIL, Rail.TRANSACTIONAL)


class _Acknowledged:
    def post_process_message(self, message: MessageProxy) -> None:
        pass


def _serve_ticket() -> None:
    """As a worker's thread does it, here, so that a bug can be put into it. Only the acknowledgement is left out."""
    work: Any = PriorityQueue()
    thread = WorkerThread(
        broker=dramatiq.get_broker(), consumers={QUEUE: _Acknowledged()}, work_queue=work, worker_timeout=20
    )
    work.put(0)
    work.get()
    thread.process_message(
        MessageProxy(dramatiq.Message(queue_name=QUEUE, actor_name=ACTOR, args=(), kwargs={}, options={}))
    )


def _break(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, error: Exception, times: int) -> None:
    """The bug is met so often, then it is mended."""
    real, met = getattr(where, name), iter(range(times))

    def broken(*args: Any, **kwargs: Any) -> Any:
        if next(met, None) is not None:
            raise type(error)(*error.args)  # a new one: a traceback grows with each raise
        return real(*args, **kwargs)

    monkeypatch.setattr(where, name, broken)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "BUG_SECONDS", 0.0)


def test_a_turn_that_dies_of_a_bug_leaves_its_ticket_to_others_after_a_pause(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose turns all die, a bad deploy, must not swallow the tickets of those that work."""
    submit_some(make_tenant(), 3)
    rig.redis.delete(f"dramatiq:{QUEUE}")
    _break(monkeypatch, claim, "take", LookupError(), 1)
    paused: list[float] = []
    monkeypatch.setattr(turn, "BUG_SECONDS", 1.5)
    monkeypatch.setattr(turn.time, "sleep", lambda seconds: paused.append(seconds))
    _serve_ticket()
    assert (paused, rig.redis.llen(f"dramatiq:{QUEUE}")) == ([1.5], 1)


def test_a_bug_after_the_request_loses_and_doubles_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, turn, "record_answer", LookupError("somebody@home.org"), 1)
    submit_some(make_tenant(), 3)
    _serve_ticket()
    assert statuses() == {"sending": 3}
    letter = DeadLetter.objects.get()
    assert (letter.send_id, letter.times) == (None, 1)
    assert letter.detail.startswith(f"{ACTOR}: LookupError at ")
    assert "dispatch/turn.py" in letter.traceback
    assert "somebody" not in letter.traceback
    rig.lapse_leases()
    _serve_ticket()
    assert statuses() == {"sent": 3}
    assert rig.sandbox.stats()["doubles"] == 0


def test_a_bug_in_the_claim_is_met_again_and_again_and_is_one_letter(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, claim, "take", LookupError(), 5)
    submit_some(make_tenant(), 3)
    for times in range(1, 6):
        _serve_ticket()
        assert (statuses(), DeadLetter.objects.get().times) == ({"queued": 3}, times)
    _serve_ticket()
    assert (statuses(), DeadLetter.objects.get().times) == ({"sent": 3}, 5)
    assert set(Send.objects.values_list("attempts", flat=True)) == {1}


@pytest.mark.parametrize("error", [OperationalError(), redis.ConnectionError()], ids=repr)
def test_a_server_that_is_away_is_no_bug(rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    _break(monkeypatch, turn, "search", error, 3)
    submit_some(make_tenant(), 3)
    for _ in range(4):
        _serve_ticket()
    assert statuses() == {"sent": 3}
    assert not DeadLetter.objects.exists()
