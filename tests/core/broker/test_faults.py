"""Redis gone, connections cut, messages that cannot be read: consumers go on, and nothing is stranded."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
import redis as redis_py
from dramatiq.errors import ConnectionClosed
from redis import Redis

from core.broker.broker import RailBroker
from tests.core.broker.rig import (
    ACTOR,
    QUEUE,
    Loop,
    OwnRedis,
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


@pytest.fixture
def own_redis() -> Iterator[OwnRedis]:
    with OwnRedis() as server:
        yield server


def test_redis_that_comes_back_empty_is_used_again(own_redis: OwnRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.2)
    broker = new_broker(own_redis.url)
    done: queue.Queue[str] = queue.Queue()
    dramatiq.actor(lambda: done.put("done"), actor_name=ACTOR, queue_name=QUEUE, broker=broker)
    producer = new_broker(own_redis.url)
    with working(broker) as worker:
        enqueue(producer)
        done.get(timeout=10)
        until_blocked(own_redis.client)
        own_redis.kill()
        first = worker.consumers[QUEUE].consumer
        until(lambda: worker.consumers[QUEUE].consumer is not first)
        own_redis.start()
        enqueue(producer)
        done.get(timeout=20)
        assert worker.consumers[QUEUE].is_alive()


def test_a_connection_cut_while_it_is_blocked_is_replaced_at_once(redis: Redis) -> None:
    def cut() -> int:
        blocked = [client["id"] for client in redis.client_list() if client["cmd"] == "blpop"]
        return sum(redis.client_kill_filter(_id=pk) for pk in blocked)

    with Loop(consumer_of(new_broker())) as loop:  # a Loop makes no new consumer
        for _ in range(3):
            until(cut)
            enqueue(new_broker())
            loop.consumer.ack(loop.got.get(timeout=10))


def test_redis_away_is_told_in_dramatiq_s_words(own_redis: OwnRedis) -> None:
    broker = new_broker(own_redis.url)
    broker.client.set_retry(redis_py.retry.Retry(redis_py.backoff.NoBackoff(), 0))  # it would try for seconds
    enqueue(broker, 2)
    consumer = consumer_of(broker)
    in_hand = next(consumer)
    own_redis.kill()
    for call in (
        lambda: consumer.ack(in_hand),
        lambda: consumer.requeue([in_hand]),
        lambda: consumer_of(broker).__next__(),
    ):
        with pytest.raises(ConnectionClosed):
            call()
    own_redis.start()


@pytest.mark.parametrize(
    "error", [redis_py.TimeoutError, redis_py.ConnectionError, redis_py.exceptions.OutOfMemoryError]
)
def test_an_ack_that_fails_is_for_dramatiq_to_repeat(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """redis-py's TimeoutError is no ConnectionError: dramatiq would take it for a bug, and leave the message behind."""
    broker = new_broker()
    enqueue(broker)
    consumer = consumer_of(broker)
    found = next(consumer)

    def fails(*args: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(broker, "do_ack", fails, raising=False)
        with pytest.raises(ConnectionClosed):
            consumer.ack(found)
    following = consumer_of(broker)  # dramatiq repeats it after five seconds; meanwhile nobody takes it for lost
    broker.gate(QUEUE).close()
    assert next(following) is None
    assert (held(redis, broker), waiting(redis)) == (1, 0)
    following.ack(found)
    assert held(redis, broker) == redis.hlen(f"dramatiq:{QUEUE}.msgs") == 0
    consumer.close()
    following.close()


@pytest.mark.parametrize("refuse", [("maxmemory", "1"), ("min-replicas-to-write", "3")], ids=["memory", "replicas"])
def test_a_redis_that_takes_no_writes_for_now_is_told_in_dramatiq_s_words(
    own_redis: OwnRedis, refuse: tuple[str, str]
) -> None:
    """What is refused within a script comes as a plain error, and as a bug dramatiq would leave the message behind."""
    broker = new_broker(own_redis.url)
    enqueue(broker)
    consumer = consumer_of(broker)
    found = next(consumer)
    name, value = refuse
    own_redis.client.config_set(name, value)
    consumer._due = 0.0  # it looks
    outcomes = {type(_error_of(call)) for call in (lambda: consumer.ack(found), lambda: next(consumer))}
    own_redis.client.config_set(name, "0")
    assert ConnectionClosed in outcomes
    assert outcomes <= {ConnectionClosed, type(None)}, "an acknowledgement only deletes: some versions let it pass"
    consumer.ack(found)
    assert held(own_redis.client, broker) == own_redis.client.hlen(f"dramatiq:{QUEUE}.msgs") == 0
    assert not broker.in_hand(QUEUE)
    consumer.close()


def _error_of(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - what it is, is the question
        return error
    return None


def test_what_a_gated_consumer_recovers_wakes_another_process(redis: Redis) -> None:
    broker = new_broker()
    (sent,) = enqueue(broker)
    broker.fetch(QUEUE, 1, broker.client)  # its answer never arrives
    redis.delete(f"dramatiq:{QUEUE}.wake")
    broker.gate(QUEUE).close()
    with Loop(consumer_of(new_broker())) as other:
        until_blocked(redis)
        other.consumer._due = float("inf")
        consumer = consumer_of(broker)
        assert next(consumer) is None
        assert other.got.get(timeout=10).message_id == sent
    consumer.close()


def test_an_error_that_will_not_pass_is_none_of_dramatiq_s_words(redis: Redis) -> None:
    redis.set(f"dramatiq:{QUEUE}", "not a list")
    consumer = consumer_of(new_broker())
    with pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        next(consumer)
    consumer.close()


def test_a_lost_answer_to_a_fetch_strands_nothing(redis: Redis) -> None:
    broker = new_broker()
    sent = enqueue(broker, 5)
    first = consumer_of(broker, prefetch=5)
    in_hand = next(first)
    assert in_hand is not None
    broker.fetch(QUEUE, 1, broker.client)  # its answer never arrives
    first.close()  # as a ConsumerThread does after an error; four are in its cache
    second = consumer_of(broker, prefetch=5)
    found = {in_hand.message_id} | {m.message_id for m in iter(lambda: next(second), None)}
    assert found == sent
    assert held(redis, broker) == 5
    first.ack(in_hand)
    assert (held(redis, broker), waiting(redis)) == (4, 0)
    second.close()


def _foreign(**fields: Any) -> bytes:
    """A message that can be decoded, and that a thread of dramatiq's would die of."""
    return message().copy(options={"redis_message_id": "bad"}).copy(**fields).encode()


@pytest.mark.parametrize(
    "bad",
    [
        b"not JSON",
        b'{"args": []}',
        b"",
        _foreign(queue_name="another"),
        _foreign(actor_name=["a"]),
        _foreign(message_id={}),
        _foreign(options={"redis_message_id": []}),
    ],
    ids=["text", "fields", "empty", "queue", "actor", "id", "redis-id"],
)
def test_a_message_that_cannot_be_read_strands_no_other(
    redis: Redis, caplog: pytest.LogCaptureFixture, bad: bytes
) -> None:
    broker = new_broker()
    sent = enqueue(broker, 2)
    redis.hset(f"dramatiq:{QUEUE}.msgs", "bad", bad)
    redis.rpush(f"dramatiq:{QUEUE}", "bad")
    redis.rpush(f"dramatiq:{QUEUE}", "gone")
    sent |= enqueue(broker, 2)
    consumer = consumer_of(broker, prefetch=6)
    with caplog.at_level(logging.ERROR):
        got = [next(consumer) for _ in range(4)]
    assert {found.message_id for found in got if found} == sent
    assert [record.message for record in caplog.records] == ["message_unreadable"] * 2
    assert "not JSON" not in caplog.text
    # One is a dead letter, one is forgotten, the rest is in hand.
    assert redis.zrange(f"dramatiq:{QUEUE}.XQ", 0, -1) == [b"bad"]
    assert held(redis, broker) == redis.hlen(f"dramatiq:{QUEUE}.msgs") == 4
    for found in got:
        consumer.ack(found)
    assert held(redis, broker) == 0
    consumer.close()


def test_an_unreadable_message_does_not_stop_giving_back(redis: Redis) -> None:
    broker = new_broker()
    enqueue(broker, 2)
    redis.hset(f"dramatiq:{QUEUE}.msgs", "bad", "bad")
    redis.rpush(f"dramatiq:{QUEUE}", "bad")
    consumer = consumer_of(broker, prefetch=3)
    assert next(consumer) is not None
    broker.gate(QUEUE).close()
    assert next(consumer) is None
    assert (waiting(redis), held(redis, broker)) == (1, 1)
    consumer.close()


def test_what_could_not_be_given_back_is_found_by_the_next_consumer(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker: RailBroker = new_broker()
    enqueue(broker, 3)
    consumer = consumer_of(broker, prefetch=3)
    in_hand = next(consumer)

    def fails(*args: Any) -> None:
        raise redis_py.TimeoutError

    broker.gate(QUEUE).close()
    with monkeypatch.context() as patch:
        patch.setattr(broker, "do_requeue", fails, raising=False)
        with pytest.raises(ConnectionClosed):
            next(consumer)
    consumer.close()
    following = consumer_of(broker, prefetch=3)
    assert next(following) is None
    assert (waiting(redis), held(redis, broker)) == (2, 1)
    following.ack(in_hand)
    following.close()


def test_what_the_work_queue_could_not_give_back_is_found_too(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = new_broker()
    enqueue(broker)
    consumer = consumer_of(broker)
    handed_out = next(consumer)

    def fails(*args: Any) -> None:
        raise redis_py.ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(broker, "do_requeue", fails, raising=False)
        with pytest.raises(ConnectionClosed):
            consumer.requeue([handed_out])
    consumer.close()
    following = consumer_of(broker)
    assert next(following) is not None
    following.close()
