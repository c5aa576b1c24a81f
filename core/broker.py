"""The broker: Dramatiq's Redis broker, with a producer that gives up quickly.

A worker may wait seconds for Redis; a web request may not. Messages are therefore enqueued through a connection of
their own with short time-outs, and `core.queues` turns what goes wrong into "not enqueued": the ledger makes up for it.
Leans on `RedisBroker.scripts["dispatch"]` and its arguments (private; dramatiq is pinned to 2.2, and
`tests/core/test_broker.py` holds the contract).
"""

from __future__ import annotations

from typing import Any

import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.common import current_millis
from redis.backoff import NoBackoff
from redis.retry import Retry

#: Seconds that an enqueue may spend on connecting, and on each answer; `core.queues` bounds the whole.
PRODUCER_TIMEOUT = 0.1


class RailBroker(RedisBroker):
    def __init__(self, *, url: str, **options: Any) -> None:
        super().__init__(client=redis.Redis.from_url(url), **options)  # type: ignore[no-untyped-call]
        self.producer = redis.Redis.from_url(
            url,
            socket_connect_timeout=PRODUCER_TIMEOUT,
            socket_timeout=PRODUCER_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
        )

    def do_enqueue(self, queue_name: str, redis_message_id: str, data: bytes) -> None:
        """As the dispatch script's `enqueue`, on the producer's connection and without the lottery of maintenance."""
        self.scripts["dispatch"](
            keys=[self.namespace],
            args=[
                "enqueue",
                current_millis(),
                queue_name,
                self.broker_id,
                self.heartbeat_timeout,
                self.dead_message_ttl,
                0,
                self._max_unpack_size_hint,
                redis_message_id,
                data,
            ],
            client=self.producer,
        )

    #: `enqueue` does not unpack; asking Redis for the real size would be a second round trip.
    _max_unpack_size_hint = 1000
