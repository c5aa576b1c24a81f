"""Configured limits, as the governor wants them. Read from the database at most every `TTL` seconds a process, so that
a change made by an operator acts within 5 s and costs no query per batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from core.governor import Bucket, Limits
from messaging.models import RateLimitBucket

#: Seconds a configuration is believed.
TTL = 2.0
#: Fair use of a tenant where no default row says otherwise, in sends and sends per second.
DEFAULT_TENANT_BUCKET = Bucket(capacity=1000, refill=1000)


@dataclass
class _Cached:
    limits: Limits | None
    tenant_default: Bucket
    read_at: float
    tenants: dict[int, Bucket] = field(default_factory=dict)


_lock = threading.Lock()
_cache: dict[str, _Cached] = {}


def _bucket(row: RateLimitBucket) -> Bucket:
    return Bucket(row.capacity, row.refill_per_second, row.reserve)


def _read(provider: str) -> _Cached:
    rows = list(RateLimitBucket.objects.filter(provider=provider, tenant=None))
    found = {(row.scope, row.unit): _bucket(row) for row in rows}
    request = found.get(("global", "request"))
    limits = Limits(request=request, quota=found.get(("global", "send"))) if request else None
    return _Cached(limits, found.get(("tenant", "send"), DEFAULT_TENANT_BUCKET), time.monotonic())


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


def tenant_buckets(provider: str, tenants: Iterable[int]) -> dict[int, Bucket]:
    """The bucket of each tenant: its own, or the provider's default for tenants."""
    cached = _current(provider)
    missing = [tenant for tenant in tenants if tenant not in cached.tenants]
    if missing:
        own = {
            row.tenant_id: _bucket(row)
            for row in RateLimitBucket.objects.filter(provider=provider, scope="tenant", tenant_id__in=missing)
        }
        cached.tenants.update({tenant: own.get(tenant, cached.tenant_default) for tenant in missing})
    return {tenant: cached.tenants[tenant] for tenant in tenants}


def forget() -> None:
    """Read again at the next call: for the process that has just written a bucket, and for tests."""
    with _lock:
        _cache.clear()
