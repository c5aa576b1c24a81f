"""The broker as a whole: messages go round, the producer is quick, nothing is delayed, gates belong to processes."""

from __future__ import annotations

import os
import signal

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker
from redis import Redis

from core.broker.broker import RailBroker
from messaging.domain.rails import Channel, Rail, actor_name, queue_name
from tests.core.broker.rig import QUEUE, consumer_of, enqueue, held, message, new_broker, until, waiting, working


def test_the_project_s_broker_delivers_a_ticket_once(redis: Redis) -> None:
    broker = dramatiq.get_broker()
    assert isinstance(broker, RailBroker)
    queue, actor = (name(Channel.EMAIL, Rail.TRANSACTIONAL) for name in (queue_name, actor_name))
    sent = broker.enqueue(message(actor, queue))
    consumer = broker.consume(queue, prefetch=2, timeout=10)
    received = next(consumer)
    assert received is not None
    assert (received.message_id, received.actor_name) == (sent.message_id, actor)
    assert redis.hlen(f"dramatiq:{queue}.msgs") == 1
    consumer.ack(received)
    assert redis.hlen(f"dramatiq:{queue}.msgs") == 0
    assert next(consumer) is None
    consumer.close()


def test_there_are_no_delay_queues(redis: Redis) -> None:
    broker = new_broker()
    assert broker.get_declared_delay_queues() == set()
    with working(broker) as worker:
        assert set(worker.consumers) == {QUEUE}
    with pytest.raises(ValueError, match="ledger"):
        broker.enqueue(message(), delay=1)
    assert redis.keys("dramatiq:jobs*") == []


def test_the_producer_gives_up_quickly_and_does_not_repeat() -> None:
    parameters = new_broker().producer.connection_pool.connection_kwargs
    assert parameters["socket_timeout"] <= 0.1
    assert parameters["socket_connect_timeout"] <= 0.1
    assert parameters["retry"].get_retries() == 0


def test_a_consumer_waits_longer_than_it_blocks_whatever_the_url_says_and_repeats_nothing() -> None:
    url = "redis://127.0.0.1:1/0?socket_timeout=0.1&socket_connect_timeout=0.1"
    parameters = new_broker(url).consuming_client(5.0).connection_pool.connection_kwargs
    assert parameters["socket_timeout"] == parameters["socket_connect_timeout"] == 5.0
    assert parameters["retry"].get_retries() == 0


def test_a_forgotten_script_is_loaded_again(redis: Redis) -> None:
    broker = new_broker()
    redis.script_flush()
    enqueue(broker)
    assert waiting(redis) == 1


def test_a_producer_leaves_no_trace_but_messages(redis: Redis) -> None:
    """A web process that comes and goes would otherwise leave a heartbeat each time."""
    enqueue(new_broker())
    assert set(redis.keys("*")) == {b"dramatiq:jobs", b"dramatiq:jobs.msgs", b"dramatiq:jobs.wake"}


def test_what_a_dead_worker_held_goes_back_when_others_fetch(redis: Redis) -> None:
    dead, living = new_broker(heartbeat_timeout=1), new_broker(heartbeat_timeout=1, maintenance_chance=1_000_000)
    enqueue(dead, 3)
    assert next(consumer_of(dead, prefetch=3)) is not None
    assert (waiting(redis), held(redis, dead)) == (0, 3)
    consumer = consumer_of(living, prefetch=3)
    until(lambda: next(consumer))
    assert (held(redis, dead), held(redis, living)) == (0, 3)
    assert redis.zrange("dramatiq:__heartbeats__", 0, -1) == [living.broker_id.encode()]
    consumer.close()


def test_by_default_the_lottery_is_dramatiq_s() -> None:
    assert new_broker().maintenance_chance == RedisBroker(client=Redis(), middleware=[]).maintenance_chance > 0  # type: ignore[no-untyped-call]


def test_a_gate_belongs_to_a_queue_and_a_process() -> None:
    broker = new_broker()
    gate = broker.gate(QUEUE)
    assert broker.gate(QUEUE) is gate
    assert broker.gate("other") is not gate
    gate.close()
    with gate._mutex:  # as if another thread were in the middle of it
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)  # it would wait for ever
            theirs = broker.gate(QUEUE)
            theirs.close()
            theirs.open()
            os._exit(0 if theirs.is_open() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not gate.is_open()


def test_a_locked_gate_stays_closed() -> None:
    gate = new_broker().gate(QUEUE)
    gate.lock()
    gate.open()
    assert not gate.is_open()
    assert gate.wait_open(0) is False
