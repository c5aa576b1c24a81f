"""A consumer is woken, it does not poll; and a wake is never swallowed by one that does not fetch."""

from __future__ import annotations

import time

import pytest
import redis as redis_py
from redis import Redis

from core.broker import transport
from core.broker.consumer import LOOK_SECONDS
from tests.core.broker.rig import (
    Loop,
    consumer_of,
    enqueue,
    held,
    message,
    new_broker,
    until,
    until_blocked,
    waiting,
    wakes,
)


def _commands(redis: Redis) -> int:
    """Commands that Redis has run since CONFIG RESETSTAT, those within scripts counted."""
    stats = redis.info("commandstats")
    return sum(stat["calls"] for name, stat in stats.items() if name not in ("cmdstat_info", "cmdstat_config"))


def test_a_message_wakes_an_idle_consumer_which_would_not_look_by_itself(redis: Redis) -> None:
    with Loop(consumer_of(new_broker())) as loop:
        until_blocked(redis)
        loop.consumer._due = time.monotonic() + 1000
        enqueue(new_broker())
        loop.got.get(timeout=10)


@pytest.mark.parametrize("is_open", [True, False], ids=["idle", "gated"])
def test_a_consumer_without_work_leaves_its_process_room_below_two_commands_a_second(
    redis: Redis, is_open: bool
) -> None:
    broker = new_broker()
    if not is_open:
        broker.gate("jobs").close()
    with Loop(consumer_of(broker)):
        until(lambda: redis.zcard("dramatiq:__heartbeats__"))
        redis.config_resetstat()
        started = time.monotonic()
        time.sleep(2 * LOOK_SECONDS)
        assert _commands(redis) <= 1.25 * (time.monotonic() - started) + 4  # 4: a look that falls on the edge


def test_a_lost_wake_costs_one_look(redis: Redis) -> None:
    broker = new_broker()
    with Loop(consumer_of(broker)) as loop:
        until_blocked(redis)
        with redis.pipeline() as pipe:  # as dramatiq's own script enqueues: without a wake
            sent = message().copy(options={"redis_message_id": "m"})
            pipe.hset("dramatiq:jobs.msgs", "m", sent.encode())
            pipe.rpush("dramatiq:jobs", "m")
            pipe.execute()
        assert loop.got.get(timeout=2 * LOOK_SECONDS).message_id == sent.message_id


def test_the_wake_list_is_bounded(redis: Redis) -> None:
    broker = new_broker()
    enqueue(broker, 3 * transport.MAX_WAKES)
    assert wakes(redis) == transport.MAX_WAKES
    for _ in range(3):
        broker.wake("jobs")
    assert wakes(redis) == transport.MAX_WAKES


def test_more_messages_than_wakes_are_all_taken_by_many_consumers(redis: Redis) -> None:
    loops = [Loop(consumer_of(new_broker(), prefetch=1)) for _ in range(3)]
    for loop in loops:
        loop.__enter__()
    try:
        until_blocked(redis, 3)
        sent = enqueue(new_broker(), 5 * transport.MAX_WAKES)
        got: set[str] = set()
        while got != sent:
            for loop in loops:
                while not loop.got.empty():
                    found = loop.got.get_nowait()
                    got.add(found.message_id)
                    loop.consumer.ack(found)
    finally:
        for loop in loops:
            loop.__exit__()
    assert waiting(redis) == redis.hlen("dramatiq:jobs.msgs") == 0


def test_a_gated_consumer_leaves_the_wake_to_another(redis: Redis) -> None:
    gated, other = new_broker(), new_broker()
    gated.gate("jobs").close()
    with Loop(consumer_of(gated)) as shut:
        until(lambda: redis.zcard("dramatiq:__heartbeats__"))
        enqueue(new_broker())
        assert wakes(redis) == 1
        with Loop(consumer_of(other)) as loop:
            loop.got.get(timeout=10)
        assert shut.got.empty()


def test_a_consumer_whose_gate_closed_while_it_was_blocked_puts_the_wake_back(redis: Redis) -> None:
    gated, other = new_broker(), new_broker()
    with Loop(consumer_of(gated)) as first:
        until_blocked(redis)  # Redis serves who has waited longest: the wake goes to the one that is about to be gated
        with Loop(consumer_of(other)) as second:
            until_blocked(redis, 2)
            second.consumer._due = time.monotonic() + 1000
            gated.gate("jobs").close()
            enqueue(new_broker())
            second.got.get(timeout=10)
        assert first.got.empty()
        assert held(redis, gated) == 0


def test_a_full_consumer_leaves_the_wake_to_another(redis: Redis) -> None:
    full, other = new_broker(), new_broker()
    with Loop(consumer_of(full, prefetch=1)) as first:
        enqueue(full)
        in_hand = first.got.get(timeout=10)
        until(lambda: redis.delete("dramatiq:jobs.wake") == 0)  # what its own full fetch passed on
        enqueue(new_broker())
        with Loop(consumer_of(other)) as second:
            second.got.get(timeout=10)
        assert first.got.empty()
        first.consumer.ack(in_hand)


def test_a_consumer_that_took_all_it_could_passes_a_wake_on(redis: Redis) -> None:
    producer, full, other = new_broker(), new_broker(), new_broker()
    enqueue(producer, 3)
    redis.delete("dramatiq:jobs.wake")
    with Loop(consumer_of(other)) as second:
        # The other one is idle and would not look: it knows of nothing.
        redis.rename("dramatiq:jobs", "hidden")
        until_blocked(redis)
        second.consumer._due = time.monotonic() + 1000
        redis.rename("hidden", "dramatiq:jobs")
        with Loop(consumer_of(full, prefetch=2)) as first:
            assert {first.got.get(timeout=10).message_id, first.got.get(timeout=10).message_id}
            second.got.get(timeout=10)


def test_an_acknowledged_message_makes_room_at_once(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.broker.consumer._PAUSE_SECONDS", 1000.0)
    broker = new_broker(heartbeat_timeout=100_000_000)
    enqueue(broker, 3)
    consumer = consumer_of(broker, prefetch=1)
    consumer._rhythm = 1000.0
    with Loop(consumer) as loop:
        for _ in range(3):
            found = loop.got.get(timeout=10)
            assert held(redis, broker) == 1
            loop.consumer.ack(found)
    assert held(redis, broker) == waiting(redis) == 0


def test_a_consumer_that_took_all_it_could_looks_again_without_a_wake(redis: Redis) -> None:
    """Wakes may get lost; who knows of more does not wait for one."""
    enqueue(new_broker(), 2)
    consumer = consumer_of(new_broker(), prefetch=1)
    first = next(consumer)
    assert first is not None
    redis.delete("dramatiq:jobs.wake")
    consumer._due = float("inf")
    assert next(consumer) is None  # full
    consumer.ack(first)
    assert next(consumer) is not None
    consumer.close()


def test_a_consumer_whose_gate_opens_looks_without_a_wake(redis: Redis) -> None:
    broker = new_broker()
    consumer = consumer_of(broker)
    assert next(consumer) is None
    broker.gate("jobs").close()
    assert next(consumer) is None
    enqueue(new_broker())
    redis.delete("dramatiq:jobs.wake")
    consumer._due = float("inf")
    broker.gate("jobs").open()
    assert next(consumer) is not None
    consumer.close()


def test_a_wake_that_was_lost_with_its_connection_is_followed_all_the_same(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = consumer_of(new_broker())
    assert next(consumer) is None

    def cut(*args: object, **options: object) -> None:
        """Redis has taken the wake off the list, and its answer does not arrive."""
        enqueue(new_broker())
        redis.delete("dramatiq:jobs.wake")
        raise redis_py.ConnectionError

    monkeypatch.setattr(consumer._client, "blpop", cut)
    consumer._due = float("inf")
    assert next(consumer) is not None
    consumer.close()
