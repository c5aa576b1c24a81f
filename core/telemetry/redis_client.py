"""Redis for what must not wait long and must not be repeated: the governor, metrics, states, looks at levels."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError
from redis.retry import Retry

log = logging.getLogger(__name__)

#: Seconds for connecting, and for each answer.
TIMEOUT = 2.0

if TYPE_CHECKING:
    _Base = redis.Connection
else:
    _Base = object


class _LeavesReplicas(_Base):
    """After a failover the address leads to the new primary, and an open connection still to the old one, which takes no
    writes any more: it is closed, and Redis counts as away until the next one is made."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)
        except redis.ResponseError as error:
            if not isinstance(error, ReadOnlyError) and "READONLY" not in str(
                error
            ):  # Redis 6: a script's is a plain error
                raise
            self.disconnect()  # type: ignore[no-untyped-call]
            raise redis.ConnectionError("Redis is a replica now") from None


def connect(url: str, *, retries: int = 0, **options: Any) -> redis.Redis:
    """A client of its own, safe to share between threads and across a fork. It repeats a command `retries` times at most."""
    client = redis.Redis.from_url(url, retry=Retry(NoBackoff(), retries), **options)
    pool = client.connection_pool
    pool.connection_class = type("Connection", (_LeavesReplicas, pool.connection_class), {})
    return client


@functools.cache
def quick_client() -> redis.Redis:
    """One for the process. Raises redis.RedisError."""
    # A second `acquire` would take a second token, and a probe's permit with it. A connection that was closed while it was
    # idle is found by the ping before its next use.
    return connect(settings.REDIS_URL, socket_connect_timeout=TIMEOUT, socket_timeout=TIMEOUT, health_check_interval=5)


NO_CLUSTER = (
    "REDIS_URL leads to a Redis Cluster, in which a queue's keys lie on several nodes and no script may touch them together."
    " Use one Redis (≥ 6.2) or Valkey with replicas: of a managed service, the kind without cluster mode."
)


def refuse_cluster(client: redis.Redis) -> None:
    """At the start of a process that works through Redis: nothing would work, and nothing would say why. Redis away is no
    reason not to start. Raises ImproperlyConfigured."""
    try:
        cluster = is_cluster(client)
    except redis.RedisError as error:
        log.warning("redis_unasked", extra={"error": type(error).__name__})
    else:
        if cluster:
            raise ImproperlyConfigured(NO_CLUSTER)


def is_cluster(client: redis.Redis) -> bool:
    """Raises redis.RedisError."""
    return bool(client.info("cluster").get("cluster_enabled"))
