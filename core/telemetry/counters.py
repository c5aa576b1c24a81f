"""Counters and histograms of many processes on many machines, added up in Redis (why: docs/decisions/0012, last section).

`add` and `observe` only write to a dictionary of the process; a thread carries what has come together to Redis every second,
in one command. With Redis away it waits there. A process that is killed takes its last second along, and an answer of Redis
that was lost may count a second twice: good for rates and alerts, not for bills.
"""

from __future__ import annotations

import bisect
import logging
import os
import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import dramatiq
import redis
from dramatiq.middleware import Middleware

from core.telemetry.redis_client import quick_client

log = logging.getLogger(__name__)

#: One hash: field `metric|label|…|slot` → sum. Labels are code words, so the number of fields is bounded.
KEY = "notif:counters"
#: Seconds between two flushes of a process that counts.
FLUSH_SECONDS = 1.0
_ADD = "for i = 1, #ARGV, 2 do redis.call('HINCRBYFLOAT', KEYS[1], ARGV[i], ARGV[i + 1]) end"


class _Buffer:
    """What this process has counted and not yet carried away. A forked child starts with an empty one."""

    def __init__(self) -> None:
        self._fresh()
        os.register_at_fork(after_in_child=self._fresh)

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, ...], float] = {}
        self._thread: threading.Thread | None = None
        self._something = threading.Event()
        self._flushing = threading.Lock()

    def add(self, *entries: tuple[tuple[str, ...], float]) -> None:
        with self._lock:
            for field, amount in entries:
                self._sums[field] = self._sums.get(field, 0.0) + amount
            if self._thread is None:
                self._thread = threading.Thread(target=self._carry, name="counters", daemon=True)
                self._thread.start()
        self._something.set()

    def flush(self) -> None:
        """Carry it away now. Raises redis.RedisError; then it is kept."""
        with self._flushing:
            with self._lock:
                self._something.clear()
                sums, self._sums = self._sums, {}
            if not sums:
                return
            arguments = [part for field, amount in sums.items() for part in ("|".join(field), repr(amount))]
            try:
                quick_client().eval(_ADD, 1, KEY, *arguments)
            except redis.RedisError:
                self.add(*sums.items())
                raise

    def _carry(self) -> None:
        told = False
        while True:
            self._something.wait()
            time.sleep(FLUSH_SECONDS)
            try:
                self.flush()
                told = False
            except redis.RedisError as error:
                if not told:
                    log.warning("counters_kept", extra={"error": type(error).__name__})
                told = True


_buffer = _Buffer()


def flush() -> None:
    """Carry what this process has counted to Redis now: for its end, and for tests. Raises redis.RedisError."""
    _buffer.flush()


@dataclass(frozen=True)
class Counter:
    """`add(label, …, by=n)`, one value for each name in `labels`: words of the code's own vocabulary, never a tenant's."""

    name: str
    help: str
    labels: tuple[str, ...]

    def add(self, *values: str, by: float = 1.0) -> None:
        assert len(values) == len(self.labels), f"{self.name} has the labels {self.labels}"
        if by:
            _buffer.add(((self.name, *values, ""), by))


@dataclass(frozen=True)
class Histogram:
    """`observe(label, …, seen=values)`. `bounds` ascend; a value belongs to the first bound that is not below it."""

    name: str
    help: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...]

    def observe(self, *values: str, seen: Sequence[float]) -> None:
        assert len(values) == len(self.labels), f"{self.name} has the labels {self.labels}"
        slots = Tally(bisect.bisect_left(self.bounds, value) for value in seen)
        where = (self.name, *values)
        _buffer.add(*(((*where, str(slot)), times) for slot, times in slots.items()), ((*where, "sum"), sum(seen)))


#: One metric's sums: label values → slot → sum. A counter's slot is "".
Sums = dict[tuple[str, ...], dict[str, float]]


def read(client: redis.Redis) -> dict[str, Sums]:
    """Everything counted, by metric. Raises redis.RedisError."""
    found: dict[str, Sums] = {}
    for field, value in cast("dict[bytes, bytes]", client.hgetall(KEY)).items():
        name, *values, slot = field.decode().split("|")
        found.setdefault(name, {}).setdefault(tuple(values), {})[slot] = float(value)
    return found


def cumulated(histogram: Histogram, slots: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """(`le`, observations up to it), as Prometheus wants them, ending with `+Inf`."""
    total = 0.0
    for i, bound in enumerate((*histogram.bounds, float("inf"))):
        total += slots.get(str(i), 0.0)
        yield ("+Inf" if i == len(histogram.bounds) else repr(float(bound))), total


class FlushCounters(Middleware):
    """A worker process that ends carries its last second away: at-exit handlers do not run in Dramatiq's children."""

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: Any) -> None:
        try:
            flush()
        except redis.RedisError as error:
            log.warning("counters_lost", extra={"error": type(error).__name__})
