"""The queue port: what the project wants of a broker, and no more.

A message here is a hint; the ledger is the truth. So `enqueue` never fails its caller and never keeps it waiting: with
Redis away it answers False within 250 ms (and at once while a recent failure says that it would fail again).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import cast

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

log = logging.getLogger(__name__)

#: Seconds for which enqueueing is not tried again after it failed: a web process full of requests must not spend its
#: time on time-outs. The clock's re-ticketing covers the gap.
_PAUSE_AFTER_FAILURE = 1.0


class _Breaker:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0.0

    def open(self) -> bool:
        return time.monotonic() < self._until

    def trip(self) -> None:
        with self._lock:
            self._until = time.monotonic() + _PAUSE_AFTER_FAILURE

    def reset(self) -> None:
        self._until = 0.0


breaker = _Breaker()


def enqueue(queue: str, actor: str) -> bool:
    """Put a message without arguments for `actor` on `queue`. False: it is not there, and nobody needs to care."""
    if breaker.open():
        return False
    message: dramatiq.Message[None] = dramatiq.Message(
        queue_name=queue, actor_name=actor, args=(), kwargs={}, options={}
    )
    try:
        dramatiq.get_broker().enqueue(message)
    except (redis.RedisError, OSError) as error:
        breaker.trip()
        log.warning("enqueue_failed", extra={"queue": queue, "error": type(error).__name__})
        return False
    breaker.reset()
    return True


def depth(queue: str) -> int:
    """Messages that wait on `queue`, not yet fetched by a worker. Raises redis.RedisError."""
    broker = _broker()
    return cast("int", broker.client.llen(f"{broker.namespace}:{queue}"))


def oldest_age(queue: str) -> float | None:
    """Seconds since the first waiting message was made, None if none waits. Raises redis.RedisError."""
    broker = _broker()
    key = f"{broker.namespace}:{queue}"
    first = cast("bytes | None", broker.client.lindex(key, 0))
    data = cast("bytes | None", broker.client.hget(f"{key}.msgs", cast("str", first))) if first else None
    if data is None:
        return None
    made_at: float = json.loads(data)["message_timestamp"] / 1000
    return max(0.0, time.time() - made_at)


def _broker() -> RedisBroker:
    broker = dramatiq.get_broker()
    assert isinstance(broker, RedisBroker)
    return broker
