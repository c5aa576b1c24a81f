"""What the last audit said, kept in Redis for whoever asks: a metric, an alert, a page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

from core.telemetry.redis_client import quick_client

_KEY = "notif:audit"


@dataclass(frozen=True, slots=True)
class LastAudit:
    at: float  # seconds since 1970
    differences: int
    notices: int
    seconds: float


def remember(*, differences: int, notices: int, seconds: float) -> None:
    """Raises redis.RedisError."""
    quick_client().hset(
        _KEY,
        mapping={
            "at": repr(time.time()),
            "differences": differences,
            "notices": notices,
            "seconds": repr(seconds),
        },
    )


def last_audit() -> LastAudit | None:
    """None: there was none, or Redis has lost it. Raises redis.RedisError."""
    found = cast("dict[bytes, bytes]", quick_client().hgetall(_KEY))
    if not found:
        return None
    return LastAudit(
        at=float(found[b"at"]),
        differences=int(found[b"differences"]),
        notices=int(found[b"notices"]),
        seconds=float(found[b"seconds"]),
    )
