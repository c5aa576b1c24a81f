"""What the governor's state says, read without changing it (fields: docs/governor.md). One round trip a look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import redis

from core.governor.client import Bucket, Governor

_FIELDS = ("circuit", "circuit_rail", "tokens", "at", "q_tokens", "q_at")


@dataclass(frozen=True, slots=True)
class Levels:
    """`circuit`: the reason for which it is open, or ""; `circuit_rail`: "marketing" if for that rail alone. `request`,
    `quota`: tokens there are now, None without a bucket. `tenants`: tokens of each tenant that was asked for."""

    circuit: str
    circuit_rail: str
    request: float | None
    quota: float | None
    tenants: dict[int, float] = field(default_factory=dict)


def read_levels(
    client: redis.Redis,
    governor: Governor,
    *,
    request: Bucket | None = None,
    quota: Bucket | None = None,
    tenants: Mapping[int, Bucket] | None = None,
) -> Levels:
    """Raises redis.RedisError."""
    state_key, tenants_key, _ = governor.keys
    asked = dict(tenants or {})
    pipe = client.pipeline(transaction=False)
    pipe.time()
    pipe.hmget(state_key, list(_FIELDS))
    if asked:
        pipe.hmget(tenants_key, [bucket.level_of(tenant) for tenant, bucket in asked.items()])
    (seconds, micros), state, *rest = pipe.execute()
    now = seconds + micros / 1e6
    circuit, circuit_rail, tokens, at, q_tokens, q_at = (value.decode() if value else "" for value in state)
    stored = cast("list[bytes | None]", rest[0]) if asked else []
    return Levels(
        circuit=circuit,
        circuit_rail=circuit_rail,
        request=_level(f"{tokens}:{at}", request, now, missing=1.0) if request else None,
        quota=_level(f"{q_tokens}:{q_at}", quota, now) if quota else None,
        tenants={
            tenant: _level(value.decode() if value else "", bucket, now)
            for (tenant, bucket), value in zip(asked.items(), stored, strict=True)
        },
    )


def _level(stored: str, bucket: Bucket, now: float, missing: float | None = None) -> float:
    """Tokens now, of a level stored as `tokens:at…`; one that is not stored is full, or `missing`."""
    tokens, _, rest = stored.partition(":")
    if not tokens:
        return bucket.capacity if missing is None else min(missing, bucket.capacity)
    at = float(rest.partition(":")[0] or now)
    return min(bucket.capacity, float(tokens) + max(0.0, now - at) * bucket.refill)
