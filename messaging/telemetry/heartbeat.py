"""That the clock runs, kept in Redis for whoever asks: nothing else tells, as long as nobody misses what it does."""

from __future__ import annotations

import time

from core.telemetry.redis_client import quick_client

_KEY = "notif:clock"


def tell() -> int:
    """The clock beats at this moment. Returns 0, as a step that moved nothing. Raises redis.RedisError."""
    quick_client().set(_KEY, repr(time.time()))
    return 0


def last_beat() -> float | None:
    """Seconds since 1970; None: it never ran, or Redis has lost it. Raises redis.RedisError."""
    found = quick_client().get(_KEY)
    return float(found) if isinstance(found, bytes) else None
