"""One look: how deep is the transactional rail, and where are the marks? Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import redis

from core.governor.client import Governor
from core.governor.levels import read_levels
from messaging.backpressure.policy import Marks, Policy
from messaging.domain.rails import Rail
from messaging.ledger import buckets
from messaging.ledger.depth import count, who_waits
from messaging.providers.base import Adapter


@dataclass(frozen=True, slots=True)
class Measurement:
    """`depth` is counted up to the high mark. `marks` is None when a backlog does not count, `why` says for what reason:
    the provider's circuit is open, or it has no bucket; nothing leaves then, whoever yields."""

    depth: int
    marks: Marks | None
    why: str = ""


def measure(adapter: Adapter, client: redis.Redis, policy: Policy) -> Measurement:
    """Raises django.db.Error and redis.RedisError. Redis is asked only when the depth as such would reach the low mark."""
    limits = buckets.limits_of(adapter.name)
    if limits is None:
        return Measurement(0, None, "no_bucket")
    marks = policy.marks(max_batch=adapter.max_batch, refill=limits.request.refill)
    who = who_waits(adapter.channel)
    if not who:
        return Measurement(0, marks)
    fair = buckets.tenant_buckets(adapter, limits, Rail.TRANSACTIONAL, who)
    # What lies beyond a tenant's bucket is its own wait. Within it counts what may leave while the provider takes as much as the
    # low mark stands for: a tenant that uses its share and no more holds nobody who has stopped.
    soon = marks.low / (limits.request.refill * adapter.max_batch)
    # A full bucket's first: what is there can only be less, and mostly this ends it.
    full = {tenant: int(bucket.capacity + bucket.refill * soon) for tenant, bucket in fair.items()}
    depth = count(adapter.channel, who, full, marks.high)
    if depth <= marks.low:
        return Measurement(depth, marks)
    levels = read_levels(client, Governor(client, adapter.name), tenants=fair)
    if (
        levels.circuit and not levels.circuit_rail
    ):  # one that is open for marketing alone lets this rail's backlog leave
        return Measurement(depth, None, "circuit")
    most = {t: max(0, int(levels.tenants[t] + bucket.refill * soon)) for t, bucket in fair.items()}
    return Measurement(count(adapter.channel, who, most, marks.high), marks)
