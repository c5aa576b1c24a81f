"""Configured limits, as the governor wants them. Read from the database at most every `TTL` seconds a process, so that
a change made by an operator acts within 5 s and costs no query per batch."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from core.governor.client import Bucket, Limits
from messaging.domain.rails import Rail
from messaging.models import RateLimitBucket
from messaging.providers.base import Adapter

#: Seconds a configuration is believed.
TTL = 2.0
#: Of what the provider takes, what a tenant may use of the transactional rail where no row says otherwise: one tenant's flood
#: leaves the other half to everybody's marketing (docs/decisions/0013).
TRANSACTIONAL_SHARE = 0.5
#: And of the marketing rail: all that is free. No provider takes so much; what there is is split evenly.
ALL_THAT_IS_FREE = Bucket(1_000_000, 1_000_000, rail=Rail.MARKETING)

_ByRail = Mapping[str | None, Bucket]


@dataclass
class _Cached:
    limits: Limits | None
    defaults: _ByRail
    read_at: float
    tenants: dict[int, _ByRail] = field(default_factory=dict)


_lock = threading.Lock()
_cache: dict[str, _Cached] = {}


def _bucket(row: RateLimitBucket) -> Bucket:
    return Bucket(row.capacity, row.refill_per_second, row.reserve, row.rail or "")


def _read(provider: str) -> _Cached:
    rows = list(RateLimitBucket.objects.filter(provider=provider, tenant=None))
    found = {row.unit: _bucket(row) for row in rows if row.scope == "global"}
    request = found.get("request")
    limits = Limits(request=request, quota=found.get("send")) if request else None
    return _Cached(limits, {row.rail: _bucket(row) for row in rows if row.scope == "tenant"}, time.monotonic())


def _current(provider: str) -> _Cached:
    with _lock:
        cached = _cache.get(provider)
    if cached is None or time.monotonic() - cached.read_at > TTL:
        cached = _read(provider)
        with _lock:
            _cache[provider] = cached
    return cached


def limits_of(provider: str) -> Limits | None:
    """The provider's global buckets; None without a request bucket: such a provider is not sent to (fail closed)."""
    return _current(provider).limits


def tenant_buckets(adapter: Adapter, limits: Limits, rail: Rail, tenants: Iterable[int]) -> dict[int, Bucket]:
    """The bucket of each tenant on a rail: its own for that rail or for both, else the provider's default for tenants (in the
    same order), else what is built in."""
    cached = _current(adapter.name)
    wanted = list(tenants)
    missing = [tenant for tenant in wanted if tenant not in cached.tenants]
    if missing:
        own: defaultdict[int, dict[str | None, Bucket]] = defaultdict(dict)
        for row in RateLimitBucket.objects.filter(provider=adapter.name, scope="tenant", tenant_id__in=missing):
            assert row.tenant_id is not None
            own[row.tenant_id][row.rail] = _bucket(row)
        cached.tenants.update({tenant: own.get(tenant, {}) for tenant in missing})
    default = _of_rail(cached.defaults, rail) or built_in(limits, rail, adapter.max_batch)
    return {tenant: _of_rail(cached.tenants[tenant], rail) or default for tenant in wanted}


def _of_rail(found: _ByRail, rail: Rail) -> Bucket | None:
    return found.get(rail) or found.get(None)


def built_in(limits: Limits, rail: Rail, max_batch: int) -> Bucket:
    """What a tenant may use where no row says otherwise. On the transactional rail a second's worth of it at once, and a full
    request in any case: a burst of login codes is not held up."""
    if rail is Rail.MARKETING:
        return ALL_THAT_IS_FREE
    refill = TRANSACTIONAL_SHARE * limits.request.refill * max_batch
    return Bucket(max(refill, float(max_batch)), refill, rail=Rail.TRANSACTIONAL)


def forget() -> None:
    """Read again at the next call: for the process that has just written a bucket, and for tests."""
    with _lock:
        _cache.clear()
