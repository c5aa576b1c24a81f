"""The queue port: what the project wants of a broker, and no more.

A message here is a hint; the ledger is the truth. So `enqueue` never fails its caller and never keeps it waiting: with
Redis away it answers False within 250 ms (and at once while a recent failure says that it would fail again).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dramatiq
import redis

from core.broker.broker import RailBroker
from core.telemetry.redis_client import quick_client

log = logging.getLogger(__name__)

#: Seconds for which enqueueing is not tried again after it failed: a web process full of requests must not spend its
#: time on time-outs. The clock's re-ticketing covers the gap.
_PAUSE_AFTER_FAILURE = 1.0


#: Seconds for which a caller waits at most. Time-outs of a connection count each of its several exchanges anew (and a
#: name server's not at all), so the enqueue itself runs in a thread of its own.
_PATIENCE = 0.2
#: Enqueues under way at most. With Redis slow, further ones are not tried: the clock makes up for them.
_UNDER_WAY = 8
#: Hints that wait on a queue at most. Without workers, a submit each second would fill Redis, which the governor needs.
MAX_HINTS = 300


class _Breaker:
    """Open for `_PAUSE_AFTER_FAILURE` after an enqueue failed or was too slow."""

    def __init__(self) -> None:
        self._until = 0.0

    def open(self) -> bool:
        return time.monotonic() < self._until

    def trip(self) -> None:
        self._until = time.monotonic() + _PAUSE_AFTER_FAILURE

    def reset(self) -> None:
        self._until = 0.0


class _Producer:
    """A few threads that enqueue. Made anew in a forked child, where threads do not live on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fresh()
        os.register_at_fork(after_in_child=self._fresh)

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._free = threading.BoundedSemaphore(_UNDER_WAY)

    def run(self, enqueue: Callable[[], object]) -> None:
        """Run `enqueue` for at most `_PATIENCE`. Raises its error, or TimeoutError; then it may still come to pass."""
        if not self._free.acquire(blocking=False):
            raise TimeoutError
        with self._lock:
            self._pool = self._pool or ThreadPoolExecutor(_UNDER_WAY, "enqueue")
        future = self._pool.submit(enqueue)
        future.add_done_callback(lambda _: self._free.release())
        future.result(_PATIENCE)


breaker = _Breaker()
_producer = _Producer()


def enqueue(queue: str, actor: str, /, *args: Any, **kwargs: Any) -> bool:
    """Put a message for `actor` on `queue`. False: it may not be there."""
    return _put(queue, actor, args, kwargs, at_most=0)


def hint(queue: str, actor: str) -> bool:
    """Let `actor` look for work, soon: a message that carries none. With `MAX_HINTS` on the queue it is left out, since whoever
    takes one of those looks later than now. False: it may not be there; nobody needs to care."""
    return _put(queue, actor, (), {}, at_most=MAX_HINTS)


def _put(queue: str, actor: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, at_most: int) -> bool:
    if breaker.open():
        return False
    message: dramatiq.Message[None] = dramatiq.Message(
        queue_name=queue, actor_name=actor, args=args, kwargs=kwargs, options={}
    )
    broker = _broker()
    try:
        _producer.run(lambda: broker.enqueue(message, at_most=at_most))
    except (redis.RedisError, OSError) as error:  # TimeoutError is an OSError
        breaker.trip()
        log.warning("enqueue_failed", extra={"queue": queue, "error": type(error).__name__})
        return False
    breaker.reset()
    return True


def may_work(queue: str) -> bool:
    """Whether this process may begin something for `queue`: its gate is open. A job that waits asks before each try."""
    return _broker().gate(queue).is_open()


def depth(queue: str) -> int:
    """Messages that wait on `queue`, not yet fetched by a worker. Raises redis.RedisError."""
    return quick_client().llen(_broker().key(queue))


def wake(queue: str) -> None:
    """Make a worker of `queue` look, although nothing new was put on it: the one that was woken for what waits there may have
    vanished. Raises redis.RedisError."""
    broker = _broker()
    broker.wake(queue, broker.producer)


def _broker() -> RailBroker:
    broker = dramatiq.get_broker()
    assert isinstance(broker, RailBroker)
    return broker
