"""A closed gate: nothing is fetched, what nobody has begun goes back, the job in hand is finished, the worker counts as alive."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from redis import Redis

from core.broker.broker import RailBroker
from tests.core.broker.rig import (
    ACTOR,
    QUEUE,
    Loop,
    consumer_of,
    enqueue,
    held,
    message,
    new_broker,
    until,
    until_blocked,
    waiting,
    working,
)


class Jobs:
    """An actor whose jobs begin, and wait until they may end."""

    def __init__(self, broker: RailBroker, queue_name: str = QUEUE) -> None:
        self.begun: queue.Queue[str] = queue.Queue()
        self.done: queue.Queue[str] = queue.Queue()
        self._may_end = threading.Semaphore(0)
        self._name = queue_name
        dramatiq.actor(self._work, actor_name=f"{ACTOR}", queue_name=queue_name, broker=broker)

    def _work(self) -> None:
        me = threading.current_thread().name
        self.begun.put(me)
        assert self._may_end.acquire(timeout=30)
        self.done.put(me)

    def begin(self, count: int) -> None:
        for _ in range(count):
            self.begun.get(timeout=10)

    def end(self, count: int) -> None:
        self._may_end.release(count)
        for _ in range(count):
            self.done.get(timeout=10)


@pytest.fixture
def broker(redis: Redis) -> RailBroker:
    return new_broker()


def _taken_by(broker: RailBroker, count: int) -> Iterator[Any]:
    """What another process gets, at once."""
    consumer = consumer_of(broker, prefetch=count + 1)
    for _ in range(count):
        found = next(consumer)
        assert found is not None
        yield found
        consumer.ack(found)
    consumer.close()


def test_what_was_prefetched_goes_back_and_the_job_in_hand_is_finished(broker: RailBroker, redis: Redis) -> None:
    jobs = Jobs(broker)
    sent = enqueue(broker, 6)
    with working(broker, threads=2, prefetch=6):
        jobs.begin(2)
        until(lambda: held(redis, broker) == 6)
        broker.gate(QUEUE).close()
        until(lambda: waiting(redis) == 4)
        assert held(redis, broker) == 2
        # Visible, and another process takes them while the gate is still closed.
        others = {found.message_id for found in _taken_by(new_broker(), 4)}
        assert others < sent
        jobs.end(2)
        until(lambda: held(redis, broker) == 0)
        assert waiting(redis) == redis.hlen(f"dramatiq:{QUEUE}.msgs") == 0
        assert jobs.begun.empty()


def test_nothing_is_fetched_while_it_is_closed(broker: RailBroker, redis: Redis) -> None:
    jobs = Jobs(broker)
    broker.gate(QUEUE).close()
    with working(broker):
        until(lambda: redis.zcard("dramatiq:__heartbeats__"))
        enqueue(broker, 5)
        heard = redis.zscore("dramatiq:__heartbeats__", broker.broker_id)
        until(lambda: redis.zscore("dramatiq:__heartbeats__", broker.broker_id) > heard)
        assert (waiting(redis), held(redis, broker)) == (5, 0)
        broker.gate(QUEUE).open()
        jobs.begin(2)
        jobs.end(5)
        until(lambda: redis.hlen(f"dramatiq:{QUEUE}.msgs") == 0)


def test_it_goes_on_after_ten_closings_with_full_hands(broker: RailBroker, redis: Redis) -> None:
    jobs = Jobs(broker)
    gate = broker.gate(QUEUE)
    enqueue(broker, 50)
    with working(broker, threads=2, prefetch=6) as worker:
        for number in range(10):
            jobs.begin(2)
            until(lambda number=number: held(redis, broker) == 6)
            gate.close()
            until(lambda number=number: waiting(redis) == 50 - 2 * number - 2)
            jobs.end(2)
            until(lambda: held(redis, broker) == 0)
            gate.open()
        jobs.begin(2)
        jobs.end(30)
        until(lambda: redis.hlen(f"dramatiq:{QUEUE}.msgs") == 0)
        assert held(redis, broker) == waiting(redis) == 0
        until(lambda: worker.work_queue.unfinished_tasks == 0)  # or Worker.join would wait for ever


def test_a_closed_gate_leaves_the_other_queue_of_the_process_alone(broker: RailBroker, redis: Redis) -> None:
    jobs = Jobs(broker)
    other: queue.Queue[None] = queue.Queue()
    dramatiq.actor(lambda: other.put(None), actor_name="other", queue_name="others", broker=broker)
    with working(broker, threads=1, prefetch=4):
        enqueue(broker, 3)
        jobs.begin(1)
        for _ in range(2):
            broker.enqueue(message("other", "others"))
        until(lambda: held(redis, broker, "others") == 2)
        broker.gate(QUEUE).close()
        until(lambda: waiting(redis) == 2)
        assert held(redis, broker, "others") == 2
        jobs.end(1)
        for _ in range(2):
            other.get(timeout=10)
        assert (waiting(redis), jobs.begun.empty()) == (2, True)


def test_the_cache_of_a_consumer_goes_back_too(broker: RailBroker, redis: Redis) -> None:
    enqueue(broker, 4)
    consumer = consumer_of(broker, prefetch=4)
    in_hand = next(consumer)
    assert (waiting(redis), held(redis, broker)) == (0, 4)
    broker.gate(QUEUE).close()
    assert next(consumer) is None
    assert (waiting(redis), held(redis, broker)) == (3, 1)
    consumer.ack(in_hand)
    broker.gate(QUEUE).open()
    for _ in range(3):
        assert next(consumer) is not None
    consumer.close()


def test_giving_back_wakes_another_process(broker: RailBroker, redis: Redis) -> None:
    enqueue(broker, 3)
    consumer = consumer_of(broker, prefetch=3)
    assert next(consumer) is not None
    redis.delete(f"dramatiq:{QUEUE}.wake")
    with Loop(consumer_of(new_broker(), prefetch=3)) as other:
        until_blocked(redis)
        other.consumer._due = float("inf")
        broker.gate(QUEUE).close()
        assert next(consumer) is None
        for _ in range(2):
            other.got.get(timeout=10)
    consumer.close()


@pytest.mark.parametrize("kept", ["gated", "full"])
def test_it_counts_as_alive_for_longer_than_the_heartbeat_timeout(redis: Redis, kept: str) -> None:
    """Or another worker would take the messages of the jobs in hand."""
    broker = new_broker(heartbeat_timeout=1600)
    enqueue(broker, 2)
    with Loop(consumer_of(broker, prefetch=1)) as loop:
        in_hand = loop.got.get(timeout=10)
        if kept == "gated":
            broker.gate(QUEUE).close()
        scavenger = new_broker(heartbeat_timeout=1600, maintenance_chance=1_000_000)
        seen = set()
        while len(seen) < 7:  # a beat every quarter of the timeout: one and a half timeouts
            seen.add(redis.zscore("dramatiq:__heartbeats__", broker.broker_id))
            scavenger.fetch(QUEUE, 0, scavenger.client)
            assert held(redis, broker) == 1
            time.sleep(0.05)
        loop.consumer.ack(in_hand)
    scavenger.client.close()
