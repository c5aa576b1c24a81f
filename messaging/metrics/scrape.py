"""Everything that `/metrics` says, read when somebody asks and kept for a moment.

What the database and what Redis say are read apart: with one of them away the other's metrics are there, the missing ones
are missing (never 0), and `notif_scrape_failed` says which.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator

import redis
from django.db import Error, close_old_connections
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from core.broker import queues
from core.governor.client import Governor
from core.governor.levels import read_levels
from core.telemetry import counters
from core.telemetry.redis_client import quick_client
from messaging.backpressure.state import yield_state
from messaging.domain.rails import Rail, queue_name
from messaging.ledger import backlog, buckets
from messaging.providers.registry import adapters
from messaging.telemetry import counted
from messaging.telemetry.audits import last_audit
from messaging.telemetry.heartbeat import last_beat

log = logging.getLogger(__name__)

#: Seconds for which a scrape is answered with the last one's figures: several scrapers, and curious ones, cost one.
KEPT_SECONDS = 1.5
#: Why a provider's circuit can be open.
CIRCUIT_REASONS = ("unreachable", "credential", "refusing")


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def from_counters() -> Iterator[Metric]:
    found = counters.read(quick_client())
    for spec in counted.ALL:
        # A release that changes a metric's labels finds sums with those of the one before.
        sums = sorted((v, slots) for v, slots in found.get(spec.name, {}).items() if len(v) == len(spec.labels))
        if isinstance(spec, counters.Counter):
            counter = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
            for values, slots in sums:
                counter.add_metric(values, slots[""])
            yield counter
        else:
            histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
            for values, slots in sums:
                histogram.add_metric(values, list(counters.cumulated(spec, slots)), slots.get("sum", 0.0))
            yield histogram


def from_redis() -> Iterator[Metric]:
    jobs = _gauge("notif_rail_jobs", "Tickets that no worker has fetched.", ("queue",))
    yielding = _gauge("notif_marketing_yielding", "1 while a marketing worker of the channel yields.", ("channel",))
    circuit = _gauge(
        "notif_circuit_open",
        "1 while nothing but probes goes to the provider (refusing: perhaps of marketing alone).",
        ("provider", "reason"),
    )
    for channel, adapter in adapters().items():
        for rail in Rail:
            name = queue_name(channel, rail)
            jobs.add_metric((name,), queues.depth(name))
        yielding.add_metric((channel,), yield_state(channel, quick_client()).yielding)
        reason = read_levels(quick_client(), Governor(quick_client(), adapter.name)).circuit
        for known in CIRCUIT_REASONS:
            circuit.add_metric((adapter.name, known), reason == known)
    yield from (jobs, yielding, circuit)
    if (beat := last_beat()) is not None:  # none: absent
        clock = _gauge("notif_clock_timestamp_seconds", "When the clock last said that it runs; it does every 5 s.", ())
        clock.add_metric((), beat)
        yield clock
    if (last := last_audit()) is not None:
        differences = _gauge("notif_audit_differences", "What the last audit found that does not add up.", ())
        differences.add_metric((), last.differences)
        at = _gauge("notif_audit_timestamp_seconds", "When that was.", ())
        at.add_metric((), last.at)
        yield from (differences, at)


def from_both() -> Iterator[Metric]:
    tokens = _gauge(
        "notif_bucket_tokens",
        "Tokens of the provider's own buckets at this moment: requests (global), and the quota in sends (quota).",
        ("provider", "scope"),
    )
    for adapter in adapters().values():
        limits = buckets.limits_of(adapter.name)
        if limits is None:
            continue  # no bucket, no level: absent, and nothing is sent
        levels = read_levels(
            quick_client(), Governor(quick_client(), adapter.name), request=limits.request, quota=limits.quota
        )
        for scope, level in (("global", levels.request), ("quota", levels.quota)):
            if level is not None:
                tokens.add_metric((adapter.name, scope), level)
    yield tokens


def from_ledger() -> Iterator[Metric]:
    depth = _gauge(
        "notif_rail_depth",
        f"Due sends of the rail, counted up to {backlog.MOST}; of blasts, those that are running.",
        ("channel", "rail"),
    )
    oldest = _gauge(
        "notif_rail_oldest_seconds",
        "How long the oldest due send is due, of the first thousand tenants and blasts with any; 0 if nothing is due.",
        ("channel", "rail"),
    )
    unclear = _gauge(
        "notif_ambiguous",
        f"Batches of which nobody can tell whether they were sent, up to {backlog.MOST}.",
        ("provider",),
    )
    dead = _gauge(
        "notif_dead_letters",
        f"The newest {backlog.MOST} dead letters by reason; beyond the {backlog.REASONS} most frequent ones: other.",
        ("channel", "reason"),
    )
    for channel in adapters():
        for rail in Rail:
            facts = backlog.rail_facts(channel, rail)
            depth.add_metric((channel, rail), facts.depth)
            oldest.add_metric((channel, rail), facts.oldest)
    batches = backlog.ambiguous()
    for adapter in adapters().values():
        unclear.add_metric((adapter.name,), batches.get(adapter.name, 0))
    for labels, n in backlog.dead_letters().items():
        dead.add_metric(labels, n)
    yield from (depth, oldest, unclear, dead)


_PARTS: dict[str, Callable[[], Iterator[Metric]]] = {
    "counters": from_counters,
    "redis": from_redis,
    "buckets": from_both,
    "ledger": from_ledger,
}


class _Collector:
    def collect(self) -> Iterator[Metric]:
        failed = _gauge("notif_scrape_failed", "1 if these metrics could not be read: they are absent.", ("part",))
        for name, part in _PARTS.items():
            try:
                found = list(part())
            except Exception as error:
                if isinstance(error, Error | redis.RedisError):
                    log.warning("scrape_failed", extra={"part": name, "error": type(error).__name__})
                else:  # a bug, or what another release has left there: the other parts are still wanted
                    log.exception("scrape_failed", extra={"part": name, "error": type(error).__name__})
                close_old_connections()
                failed.add_metric((name,), 1)
            else:
                failed.add_metric((name,), 0)
                yield from found
        yield failed


class Scrapes:
    """The text of the last scrape, for `KEPT_SECONDS`. Requests that come together wait for one reading."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = b""
        self._until = 0.0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector())

    def text(self) -> bytes:
        with self._lock:
            if time.monotonic() >= self._until:
                self._text = generate_latest(self._registry)
                self._until = time.monotonic() + KEPT_SECONDS
            return self._text


@functools.cache
def scrapes() -> Scrapes:
    return Scrapes()
