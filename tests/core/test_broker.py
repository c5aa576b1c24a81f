"""The contract with dramatiq 2.2: every private thing that the broker leans on, against the real Redis."""

from __future__ import annotations

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.common import dq_name
from redis import Redis

from core.broker import RailBroker
from messaging.rails import Channel, Rail, actor_name, queue_name

QUEUE = queue_name(Channel.EMAIL, Rail.TRANSACTIONAL)
ACTOR = actor_name(Channel.EMAIL, Rail.TRANSACTIONAL)


def _message() -> dramatiq.Message[None]:
    return dramatiq.Message(queue_name=QUEUE, actor_name=ACTOR, args=(), kwargs={}, options={})


@pytest.fixture
def broker(redis: Redis, settings: object) -> RailBroker:
    found = dramatiq.get_broker()
    assert isinstance(found, RailBroker)
    return found


def test_what_we_enqueue_dramatiq_fetches_and_acknowledges(broker: RailBroker, redis: Redis) -> None:
    sent = broker.enqueue(_message())
    consumer = broker.consume(QUEUE, prefetch=2, timeout=10)
    received = next(consumer)
    assert received is not None
    assert (received.message_id, received.actor_name) == (sent.message_id, ACTOR)
    assert redis.hlen(f"dramatiq:{QUEUE}.msgs") == 1
    consumer.ack(received)
    assert redis.hlen(f"dramatiq:{QUEUE}.msgs") == 0
    assert next(consumer) is None


def test_our_enqueue_leaves_what_dramatiq_s_own_leaves(broker: RailBroker, redis: Redis) -> None:
    broker.enqueue(_message())
    ours = {key: redis.type(key) for key in redis.keys(f"dramatiq:{QUEUE}*")}
    redis.flushdb()
    RedisBroker(client=broker.client).enqueue(_message())  # type: ignore[no-untyped-call]
    theirs = {key: redis.type(key) for key in redis.keys(f"dramatiq:{QUEUE}*")}
    assert theirs.items() <= ours.items()


def test_the_producer_gives_up_quickly_and_does_not_repeat(broker: RailBroker) -> None:
    parameters = broker.producer.connection_pool.connection_kwargs
    assert parameters["socket_timeout"] <= 0.1
    assert parameters["socket_connect_timeout"] <= 0.1
    assert parameters["retry"].get_retries() == 0


def test_a_forgotten_script_is_loaded_again(broker: RailBroker, redis: Redis) -> None:
    redis.script_flush()
    broker.enqueue(_message())
    assert redis.llen(f"dramatiq:{QUEUE}") == 1


def test_the_names_of_the_queues_are_not_delay_queues() -> None:
    assert dq_name(QUEUE) != QUEUE
