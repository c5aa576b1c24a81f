"""Redis for what must not wait long and must not be repeated: the governor, metrics, states, looks at levels."""

from __future__ import annotations

import functools

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

#: Seconds for connecting, and for each answer.
TIMEOUT = 2.0


@functools.cache
def quick_client() -> redis.Redis:
    """One for the process; safe to share between threads, and across a fork. Raises redis.RedisError."""
    # A second `acquire` would take a second token, and a probe's permit with it. A connection that was closed while it was
    # idle is found by the ping before its next use.
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_connect_timeout=TIMEOUT,
        socket_timeout=TIMEOUT,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=5,
    )
