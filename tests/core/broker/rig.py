"""Consumers and workers of the broker, each with a broker of its own, as in a process of its own."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import redis
from django.conf import settings
from dramatiq import Worker
from redis import Redis

from config.embedded.redis_server import _free_port, _program
from core.broker.broker import RailBroker
from core.broker.consumer import WakingConsumer
from tests.waiting import until as _until

QUEUE = "jobs"
ACTOR = "job"


def new_broker(url: str | None = None, **options: Any) -> RailBroker:
    broker = RailBroker(url=url or settings.REDIS_URL, **{"middleware": [], **options})
    broker.declare_queue(QUEUE)
    return broker


def message(actor: str = ACTOR, queue_name: str = QUEUE, *args: Any) -> dramatiq.Message[None]:
    return dramatiq.Message(queue_name=queue_name, actor_name=actor, args=args, kwargs={}, options={})


def enqueue(broker: RailBroker, count: int = 1) -> set[str]:
    """Their ids."""
    return {broker.enqueue(message()).message_id for _ in range(count)}


def consumer_of(broker: RailBroker, prefetch: int = 2) -> WakingConsumer:
    consumer = broker.consume(QUEUE, prefetch=prefetch, timeout=1000)
    assert isinstance(consumer, WakingConsumer)
    return consumer


def held(redis: Redis, broker: RailBroker, queue_name: str = QUEUE) -> int:
    """Messages that this worker has and has not acknowledged, as Redis has it."""
    return int(redis.scard(f"dramatiq:__acks__.{broker.broker_id}.{queue_name}"))


def waiting(redis: Redis, queue_name: str = QUEUE) -> int:
    return int(redis.llen(f"dramatiq:{queue_name}"))


def wakes(redis: Redis, queue_name: str = QUEUE) -> int:
    return int(redis.llen(f"dramatiq:{queue_name}.wake"))


def until(true: Callable[[], object], seconds: float = 10.0) -> None:
    """As `tests.waiting.until`, but sooner given up."""
    _until(true, seconds)


def until_blocked(redis: Redis, consumers: int = 1) -> None:
    """Return once so many consumers wait in BLPOP."""
    until(lambda: sum(client["cmd"] == "blpop" for client in redis.client_list()) >= consumers)


class Loop(threading.Thread):
    """Iterates a consumer as a ConsumerThread does; what it gets stands in `got`."""

    def __init__(self, consumer: WakingConsumer) -> None:
        super().__init__(daemon=True)
        self.consumer = consumer
        self.got: queue.Queue[Any] = queue.Queue()
        self.error: BaseException | None = None
        self._end = threading.Event()

    def run(self) -> None:
        try:
            while not self._end.is_set():
                found = next(self.consumer)
                if found is not None:
                    self.got.put(found)
        except BaseException as error:  # noqa: BLE001 - raised where the test ends
            self.error = error

    def __enter__(self) -> Loop:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self.join(10)
        self.consumer.close()
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


@contextmanager
def working(broker: RailBroker, threads: int = 2, prefetch: int | None = None) -> Iterator[Worker]:
    """A worker in this process. `prefetch`: more than there are threads, as dramatiq would have it."""
    worker = Worker(broker, worker_threads=threads)
    if prefetch is not None:
        worker.queue_prefetch = prefetch
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(timeout=20_000)
        broker.client.close()
        broker.producer.close()


class OwnRedis:
    """A Redis that a test may kill. It comes back empty, at the same address."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._port = _free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.client = Redis.from_url(self.url)

    def start(self) -> None:
        self._popen = subprocess.Popen(
            [
                *(_program(), "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--loglevel", "warning"),
                *self._flags,
            ],
            stdout=subprocess.DEVNULL,
        )
        until(self._answers)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    def __enter__(self) -> OwnRedis:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.kill()
