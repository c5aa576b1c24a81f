"""The keeper flips a real gate by what stands in PostgreSQL and Redis, tells of it, and is careful when it sees nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.db import OperationalError
from redis import Redis

from core.broker.gate import Gate
from core.governor.client import Governor
from core.telemetry import counters
from messaging.backpressure import keeper as module
from messaging.backpressure.keeper import Keeper
from messaging.backpressure.policy import BLIND_SECONDS, DEEP, IDLE, TRICKLE_SECONDS, WORKING, Adaptive, Fixed, Policy
from messaging.backpressure.state import TTL, key_of, yield_state
from messaging.domain.rails import Channel
from messaging.ledger import buckets
from messaging.models import RateLimitBucket, Send
from messaging.providers.registry import adapter_for
from messaging.telemetry.counted import DEPTH_UNREADABLE
from tests.factories import insert_raw, make_tenant
from tests.rig import seed_buckets

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture
def seeded(db: None, redis: Redis) -> None:
    counters.flush()
    redis.flushdb()
    seed_buckets(rate=10.0)


def make(gate: Gate, policy: Policy | None = None, process: str = "here:1") -> Keeper:
    adapter = adapter_for(Channel.EMAIL)
    assert adapter is not None
    return Keeper(adapter, gate, policy or Fixed(10, 5), process)


def leave(count: int) -> None:
    """So many sends stay due, the others are sent."""
    due = list(Send.objects.filter(status="queued").values_list("pk", flat=True))
    Send.objects.filter(pk__in=due[count:]).update(status="expired")


def test_a_gate_is_closed_until_the_first_look_has_opened_it() -> None:
    gate = Gate()
    keeper = make(gate)
    assert not gate.is_open()
    assert keeper.state.why == "starting"
    keeper.step(working=False)
    assert gate.is_open()
    assert (keeper.state.yielding, keeper.state.why) == (False, "")


def test_a_worker_that_starts_into_a_deep_rail_stays_closed() -> None:
    insert_raw(make_tenant(), 20, category="transactional")
    gate = Gate()
    make(gate).step(working=False)
    assert not gate.is_open()


def test_it_yields_at_the_high_mark_and_goes_on_at_the_low_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "messaging")
    tenant, gate = make_tenant(), Gate()
    keeper = make(gate)
    keeper.step(working=True)
    seen = []
    for count in (9, 10, 6, 5, 6, 9, 10):
        leave(0)
        insert_raw(tenant, count, category="transactional")
        keeper.step(working=True)
        seen.append((count, gate.is_open()))
    assert seen == [(9, True), (10, False), (6, False), (5, True), (6, True), (9, True), (10, False)]
    told = [record.getMessage() for record in caplog.records]
    assert told == ["marketing_yields", "marketing_resumes", "marketing_yields"]
    assert (keeper.state.depth, keeper.state.high, keeper.state.low, keeper.state.why) == (10, 10, 5, "depth")


def test_one_tenant_s_flood_of_product_mail_never_stops_marketing(redis: Redis) -> None:
    """9,000 of them, before anything of it has left and with its bucket used up. What others have may stop marketing, and it goes
    on again in spite of the flood."""
    RateLimitBucket.objects.filter(scope="tenant").delete()
    RateLimitBucket.objects.update(capacity=1.2, refill_per_second=9.8)
    buckets.forget()
    flooding, gate = make_tenant("flooding"), Gate()
    keeper = make(gate, Adaptive())
    keeper.step(working=True)
    insert_raw(flooding, 9_000, category="product")
    keeper.step(working=True)
    assert (gate.is_open(), keeper.state.depth) == (True, 690)
    level = f"99:{redis.time()[0] + 60}:0"  # as much as comes together before a request leaves; does not refill
    redis.hset(Governor(redis, "resend").keys[1], f"{flooding.pk}:transactional", level)
    keeper.step(working=True)
    assert (gate.is_open(), keeper.state.depth) == (True, 299)
    others = [make_tenant(f"other-{n}") for n in range(3)]
    for other in others:
        insert_raw(other, 400, category="transactional")
    keeper.step(working=True)
    assert not gate.is_open()
    Send.objects.filter(tenant__in=others).update(status="expired")
    keeper.step(working=True)
    assert (gate.is_open(), keeper.state.depth) == (True, 299)


def test_it_looks_often_where_it_may_matter_and_rarely_where_nothing_is_done() -> None:
    keeper = make(Gate())
    assert keeper.step(working=False) == IDLE
    assert keeper.step(working=True) == WORKING
    insert_raw(make_tenant(), 1, category="transactional")
    assert keeper.step(working=True) == DEEP
    assert keeper.step(working=False) == IDLE
    insert_raw(make_tenant(), 20, category="transactional")
    assert keeper.step(working=False) == DEEP


def test_an_open_circuit_lets_marketing_go_on(redis: Redis) -> None:
    insert_raw(make_tenant(), 20, category="transactional")
    gate = Gate()
    keeper = make(gate)
    keeper.step(working=True)
    assert not gate.is_open()
    redis.hset(Governor(redis, "resend").keys[0], "circuit", "unreachable")
    keeper.step(working=True)
    assert gate.is_open()
    assert keeper.state.why == "circuit"


@pytest.mark.parametrize("error", [OperationalError("away"), RuntimeError("a bug")], ids=["away", "bug"])
def test_without_sight_it_yields_tells_trickles_and_recovers(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    gate = Gate()
    keeper = make(gate)
    keeper.step(working=True)
    start = module.time.monotonic()

    def fail(*args: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, "measure", fail)
        patch.setattr(module, "close_old_connections", lambda: None)  # the test's own transaction
        seen = []
        for seconds in (0.0, BLIND_SECONDS - 1, BLIND_SECONDS + 0.5, BLIND_SECONDS + TRICKLE_SECONDS + 1):
            patch.setattr(module.time, "monotonic", lambda seconds=seconds: start + seconds)
            keeper.step(working=True)
            seen.append(gate.is_open())
    assert seen == [False, False, True, False]
    assert keeper.state.why == "unreadable"
    alerts = [record for record in caplog.records if record.getMessage() == "depth_unreadable"]
    assert [record.levelname for record in alerts] == ["ERROR"]  # once, not ten times a second
    counters.flush()
    assert counters.read(redis)[DEPTH_UNREADABLE.name] == {("email",): {"": 1}}
    keeper.step(working=True)
    assert gate.is_open()
    assert keeper.state.why == ""


def test_with_redis_away_it_goes_by_the_ledger_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is due: there is nothing to ask Redis, and a state that cannot be told is no reason to stop."""
    nobody = Redis(host="127.0.0.1", port=1)
    monkeypatch.setattr(module, "quick_client", lambda: nobody)
    gate = Gate()
    make(gate).step(working=True)
    assert gate.is_open()
    assert "yield_untold" in [record.getMessage() for record in caplog.records]
    insert_raw(make_tenant(), 20, category="transactional")
    monkeypatch.setattr(module, "close_old_connections", lambda: None)
    keeper = make(gate)
    keeper.step(working=True)
    assert (gate.is_open(), keeper.state.why) == (False, "unreadable")
    nobody.close()


def test_the_state_is_merged_over_processes(redis: Redis) -> None:
    assert yield_state(Channel.EMAIL, redis).processes == ()
    one, other = make(Gate(), process="a:1"), make(Gate(), process="b:1")
    one.step(working=True)
    other.step(working=True)
    state = yield_state(Channel.EMAIL, redis)
    assert (state.yielding, len(state.processes)) == (False, 2)
    insert_raw(make_tenant(), 20, category="transactional")
    one.step(working=True)
    state = yield_state(Channel.EMAIL, redis)
    assert (state.yielding, state.why, state.depth, state.high, state.low) == (True, "depth", 10, 10, 5)
    assert [process.yielding for process in state.processes] == [True, False]
    assert state.since == one.state.since
    one.end()
    other.end()
    assert yield_state(Channel.EMAIL, redis).processes == ()


def test_what_a_dead_process_told_is_not_believed_and_cleared_by_the_next(redis: Redis) -> None:
    insert_raw(make_tenant(), 20, category="transactional")
    make(Gate(), process="dead:1").step(working=True)
    key = key_of(Channel.EMAIL)
    _, text = redis.hget(key, "dead:1").split(b":", 1)  # type: ignore[union-attr]
    redis.hset(key, "dead:1", b"%d:%s" % (redis.time()[0] - 1, text))
    assert not yield_state(Channel.EMAIL, redis).yielding
    leave(0)
    make(Gate(), process="alive:1").step(working=True)
    assert redis.hkeys(key) == [b"alive:1"]
    expires, _, _ = redis.hget(key, "alive:1").partition(b":")  # type: ignore[union-attr]
    assert 0 < int(expires) - redis.time()[0] <= TTL


def test_an_unchanged_state_is_told_rarely(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = make(Gate())
    told: list[object] = []
    monkeypatch.setattr(module, "publish", lambda *args: told.append(args))
    for _ in range(20):
        keeper.step(working=True)
    assert len(told) == 1
    start = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: start + TTL / 2)
    keeper.step(working=True)
    assert len(told) == 2
