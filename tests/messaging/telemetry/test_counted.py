"""What the dispatcher counts of each request: through the real path, against the sandbox."""

from __future__ import annotations

import pytest
from redis import Redis

from core.telemetry import counters
from messaging.domain.lifecycle import BatchState
from messaging.domain.rails import Channel, Rail
from messaging.providers.base import Answer, ItemError, Verdict
from messaging.telemetry.counted import BATCH_SIZE, LATENCY, RESPONSES, SENDS, count_batch
from tests.factories import make_tenant, submit_some
from tests.rig import Rig


def counted(redis: Redis) -> dict[str, counters.Sums]:
    counters.flush()
    return counters.read(redis)


@pytest.fixture
def rig(rig: Rig) -> Rig:
    """What earlier tests have counted in this process is theirs."""
    counters.flush()
    rig.redis.flushdb()
    return rig


def test_an_accepted_batch_counts_its_sends_and_their_latencies(rig: Rig) -> None:
    submit_some(make_tenant(), 3)
    rig.turn()
    found = counted(rig.redis)
    assert found[SENDS.name] == {("email", "transactional", "resend", "accepted"): {"": 3}}
    latencies = found[LATENCY.name]["email", "transactional"]
    assert sum(n for slot, n in latencies.items() if slot != "sum") == 3
    assert latencies["sum"] > 0
    assert found[BATCH_SIZE.name]["resend", "transactional"] == {"2": 1, "sum": 3}
    assert found[RESPONSES.name] == {("resend", "200"): {"": 1}}


def test_what_comes_back_counts_by_the_state_of_its_batch(rig: Rig) -> None:
    rig.sandbox.fault("429", count=1)
    submit_some(make_tenant(), 2, category="marketing")
    rig.turn(Rail.MARKETING)
    found = counted(rig.redis)
    assert found[SENDS.name] == {("email", "marketing", "resend", "rate_limited"): {"": 2}}
    assert found[RESPONSES.name] == {("resend", "429"): {"": 1}}
    assert LATENCY.name not in found


def _count(
    redis: Redis, answer: Answer, state: BatchState, accepted: int, *, fenced_out: bool = False
) -> dict[str, float]:
    counters.flush()
    redis.flushdb()
    count_batch(
        Channel.EMAIL,
        Rail.MARKETING,
        "resend",
        items=10,
        response=str(answer.http_status or answer.code),
        state=state,
        accepted=[0.1] * accepted,
        failed=len(answer.item_errors),
        fenced_out=fenced_out,
    )
    return {labels[3]: slots[""] for labels, slots in counted(redis).get(SENDS.name, {}).items()}


def test_outcomes_add_up_to_the_items(redis: Redis) -> None:
    partial = Answer(Verdict.ACCEPTED, 200, item_errors={1: ItemError("x", ""), 2: ItemError("x", "")})
    assert _count(redis, partial, BatchState.PARTIAL, 8) == {"accepted": 8, "failed": 2}
    assert _count(redis, Answer(Verdict.UNKNOWN, None, "timeout"), BatchState.UNKNOWN, 0) == {"unknown": 10}
    assert counters.read(redis)[RESPONSES.name] == {("resend", "timeout"): {"": 1}}


def test_a_batch_that_is_another_worker_s_counts_only_what_it_really_accepted(redis: Redis) -> None:
    assert _count(redis, Answer(Verdict.REFUSED, 422), BatchState.REFUSED, 0, fenced_out=True) == {}
    assert _count(redis, Answer(Verdict.ACCEPTED, 200), BatchState.ACCEPTED, 4, fenced_out=True) == {"accepted": 4}
