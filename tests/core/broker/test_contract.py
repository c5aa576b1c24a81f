"""The contract with dramatiq 2.2: every private thing of it that `core.broker` leans on, against the real Redis."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import dramatiq
import pytest
from dramatiq import MessageProxy, Middleware, Worker, cli
from dramatiq.brokers.redis import RedisBroker, _RedisConsumer
from dramatiq.common import current_millis, iter_queue
from dramatiq.errors import BrokerConnectionError, ConnectionClosed, DecodeError
from dramatiq.worker import ConsumerThread, _WorkQueueItem
from redis import Redis

from core.broker.broker import RailBroker
from tests.core.broker.rig import QUEUE, enqueue, held, message, new_broker, waiting, working

HEARTBEATS = "dramatiq:__heartbeats__"


def _dispatch(broker: RailBroker, command: str, *args: object, at: int | None = None) -> Any:
    return broker.scripts["dispatch"](
        keys=[broker.namespace],
        args=[
            command,
            at or current_millis(),
            QUEUE,
            broker.broker_id,
            broker.heartbeat_timeout,
            broker.dead_message_ttl,
            0,
            100,
            *args,
        ],
        client=broker.client,
    )


def test_a_fetch_moves_ids_to_the_worker_and_answers_with_their_data(redis: Redis) -> None:
    broker = new_broker()
    sent = broker.enqueue(message())
    assert _dispatch(broker, "fetch", 5) == [sent.encode()]
    assert (waiting(redis), held(redis, broker)) == (0, 1)
    assert redis.hlen(f"dramatiq:{QUEUE}.msgs") == 1


def test_a_fetch_of_nothing_is_a_heartbeat_and_takes_nothing(redis: Redis) -> None:
    broker = new_broker()
    enqueue(broker)
    assert _dispatch(broker, "fetch", 0, at=17) == []
    assert redis.zscore(HEARTBEATS, broker.broker_id) == 17
    assert waiting(redis) == 1


def test_a_fetch_answers_none_for_a_message_that_has_gone(redis: Redis) -> None:
    broker = new_broker()
    enqueue(broker)
    redis.delete(f"dramatiq:{QUEUE}.msgs")
    assert _dispatch(broker, "fetch", 1) == [None]
    assert held(redis, broker) == 1


def test_requeue_gives_back_what_this_worker_holds_and_nothing_else(redis: Redis) -> None:
    broker = new_broker()
    pk = broker.enqueue(message()).options["redis_message_id"]
    _dispatch(broker, "fetch", 1)
    for _ in range(2):
        broker.do_requeue(QUEUE, pk)
    assert (waiting(redis), held(redis, broker)) == (1, 0)


def test_nack_makes_a_dead_letter_and_forgets_what_has_gone(redis: Redis) -> None:
    broker = new_broker()
    first, second = (broker.enqueue(message()).options["redis_message_id"] for _ in range(2))
    _dispatch(broker, "fetch", 2)
    redis.hdel(f"dramatiq:{QUEUE}.msgs", second)
    broker.do_nack(QUEUE, first)
    broker.do_nack(QUEUE, second)
    assert held(redis, broker) == redis.hlen(f"dramatiq:{QUEUE}.msgs") == 0
    assert redis.zrange(f"dramatiq:{QUEUE}.XQ", 0, -1) == [first.encode()]


def test_the_broker_hands_its_script_these_arguments(redis: Redis) -> None:
    broker = new_broker()
    assert set(broker.scripts) == {"dispatch", "maxstack"}
    assert broker._should_do_maintenance("ack") == 0
    assert isinstance(broker._should_do_maintenance("fetch"), int)
    assert broker._max_unpack_size() > 1000
    source = inspect.getsource(RedisBroker._dispatch)
    order = ["command,", "timestamp,", "queue_name,", "self.broker_id,", "self.heartbeat_timeout,"]
    order += ["self.dead_message_ttl,", "self._should_do_maintenance(command),", "self._max_unpack_size(),", "*args,"]
    assert [line.strip() for line in source.splitlines() if line.strip() in order] == order


def test_our_enqueue_leaves_what_dramatiq_s_own_leaves(redis: Redis) -> None:
    broker = new_broker()
    broker.enqueue(message())
    ours = {key: redis.type(key) for key in redis.keys("*")}
    redis.flushdb()
    RedisBroker(client=broker.client, middleware=[]).enqueue(message())  # type: ignore[no-untyped-call]
    theirs = {key: redis.type(key) for key in redis.keys("*")}
    assert theirs.pop(HEARTBEATS.encode()) == b"zset"
    assert ours.pop(f"dramatiq:{QUEUE}.wake".encode()) == b"list"
    assert theirs == ours


def test_the_consumer_has_these_parts(redis: Redis) -> None:
    found = _RedisConsumer(new_broker(), QUEUE, 2, 10)
    assert (found.message_cache, found.queued_message_ids, found.queue_name, found.prefetch) == ([], set(), QUEUE, 2)
    found.message_cache.append(b"")
    found.queued_message_ids.add("m")
    assert found.outstanding_message_count == 2
    assert iter(found) is found
    theirs = {name for name in vars(_RedisConsumer) if name == "__next__" or not name.startswith("_")}
    ours = {"ack", "nack", "requeue", "__next__"}
    assert theirs - ours == {"outstanding_message_count"}, "something to override is new"


def test_only_a_connection_closed_makes_a_new_consumer_without_ado() -> None:
    assert issubclass(ConnectionClosed, BrokerConnectionError)


@pytest.mark.parametrize("data", [None, b"", b"[]", b"{}", b'{"args": 1}', b"\xff"])
def test_whatever_cannot_be_read_is_a_decode_error(data: bytes | None) -> None:
    with pytest.raises(DecodeError):
        dramatiq.Message.decode(data)  # type: ignore[arg-type]


class _Notes(Middleware):
    """What a worker does, in its order, and what there is at that moment."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def before_worker_boot(self, broker: dramatiq.Broker, worker: Worker) -> None:
        assert not worker.consumers
        worker.queue_prefetch = 3
        self.order.append("before_worker_boot")

    def after_worker_boot(self, broker: dramatiq.Broker, worker: Worker) -> None:
        assert set(worker.consumers) == {QUEUE}
        assert len(worker.workers) == worker.worker_threads == 2
        assert all(thread.is_alive() for thread in (*worker.consumers.values(), *worker.workers))
        self.order.append("after_worker_boot")

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
        assert all(thread.is_alive() for thread in (*worker.consumers.values(), *worker.workers))
        self.order.append("before_worker_shutdown")

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
        self.order.append("after_worker_shutdown")


def test_a_worker_s_hooks_and_threads(redis: Redis) -> None:
    notes = _Notes()
    broker = new_broker(middleware=[notes])
    made_by: list[Any] = []
    consume = broker.consume
    broker.consume = lambda *args, **kw: made_by.append((threading.current_thread(), kw)) or consume(*args, **kw)  # type: ignore
    with working(broker) as worker:
        consumer_thread = worker.consumers[QUEUE]
        while consumer_thread.consumer is None:
            pass
        ((thread, arguments),) = made_by
        # A consumer is made by its thread, which knows the work queue; the prefetch is what the hook said.
        assert thread is consumer_thread
        assert isinstance(thread, ConsumerThread)
        assert thread.work_queue is worker.work_queue
        assert arguments["prefetch"] == 3
    assert notes.order == [
        "before_worker_boot",
        "after_worker_boot",
        "before_worker_shutdown",
        "after_worker_shutdown",
    ]


def test_an_item_of_the_work_queue_knows_its_message(redis: Redis) -> None:
    broker = new_broker()
    dramatiq.actor(lambda: None, actor_name="job", queue_name=QUEUE, broker=broker)
    worker = Worker(broker, worker_threads=1)
    thread = ConsumerThread(
        broker=broker, queue_name=QUEUE, prefetch=1, work_queue=worker.work_queue, worker_timeout=10
    )
    thread.handle_message(MessageProxy(message()))
    (item,) = iter_queue(worker.work_queue)  # type: ignore[no-untyped-call]
    assert isinstance(item, _WorkQueueItem)
    assert item.message.queue_name == QUEUE
    assert worker.work_queue.unfinished_tasks == 1, "iter_queue leaves task_done to us"


def test_a_hook_s_exit_is_not_swallowed() -> None:
    class _Ends(Middleware):
        def after_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
            raise SystemExit(1)

    with pytest.raises(SystemExit):
        new_broker(middleware=[_Ends()]).emit_after("worker_shutdown", None)


def test_the_command_line_installs_one_handler_before_the_hook_and_kills_at_the_second_signal() -> None:
    """What `core.broker.processes` is there for; the rest of it is tested with real processes."""
    source = inspect.getsource(cli.worker_process)
    assert source.index("signal.signal(signal.SIGTERM, termhandler)") < source.index('emit_after("process_boot")')
    assert "signal.signal(signal.SIGHUP, termhandler)" in source
    assert "sys.exit(RET_KILLED)" in source
