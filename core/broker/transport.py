"""The broker's way to Redis: fetching, waking, the gates of its queues, and a producer that gives up quickly.

A worker may wait seconds for Redis; a web request may not. Messages are therefore enqueued through a connection of
their own with short time-outs, and `core.broker.queues` turns what goes wrong into "not enqueued": the ledger makes up for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.common import current_millis

from core.broker.gate import Gate
from core.telemetry.redis_client import connect

#: Seconds that an enqueue may spend on connecting, and on each answer; `core.broker.queues` bounds the whole.
PRODUCER_TIMEOUT = 0.1
#: Wakes that are kept for a queue. Each one that outlives its message costs an idle consumer one look; more than there are
#: processes would help nobody, since a consumer that takes all it can passes a wake on.
MAX_WAKES = 16
_ENQUEUE = Path(__file__).with_name("enqueue.lua").read_text()


class Transport(RedisBroker):
    """What producers and consumers do with Redis."""

    def __init__(self, *, url: str, **options: Any) -> None:
        # Acknowledging and giving back may be repeated; fetching and enqueueing, which may not, have clients of their own.
        client = connect(url, retries=1)
        super().__init__(client=client, **options)  # type: ignore[no-untyped-call]
        self._url = url
        self.producer = connect(url, socket_connect_timeout=PRODUCER_TIMEOUT, socket_timeout=PRODUCER_TIMEOUT)
        self._enqueue = self.producer.register_script(_ENQUEUE)
        self._gates: dict[tuple[int, str], Gate] = {}
        self._in_hand: dict[str, set[str]] = {}

    def do_enqueue(self, queue_name: str, redis_message_id: str, data: bytes, at_most: int = 0) -> None:
        """As the dispatch script's `enqueue`, with a wake, on the producer's connection. A producer sends no heartbeat: it
        holds no messages that somebody would have to take back."""
        self._enqueue(
            keys=[self.key(queue_name), self.key(f"{queue_name}.msgs"), self.key(f"{queue_name}.wake")],
            args=[redis_message_id, data, MAX_WAKES, at_most],
        )

    def fetch(self, queue_name: str, count: int, client: redis.Redis) -> list[bytes | None]:
        """Up to `count` messages, which are then this worker's; each call is a heartbeat, also for 0. Once in a thousand
        calls dramatiq's script takes back what dead workers held (60 s without a heartbeat)."""
        fetched: list[bytes | None] = self.scripts["dispatch"](
            keys=[self.namespace],
            args=[
                "fetch",
                current_millis(),
                queue_name,
                self.broker_id,
                self.heartbeat_timeout,
                self.dead_message_ttl,
                self._should_do_maintenance("fetch"),
                self._max_unpack_size(),  # type: ignore[no-untyped-call]
                count,
            ],
            client=client,
        )
        return fetched

    def wake(self, queue_name: str, client: redis.Redis | None = None) -> None:
        """Make a consumer of the queue look, in whatever process."""
        key = self.key(f"{queue_name}.wake")
        with (client or self.client).pipeline() as pipe:
            pipe.lpush(key, "1")
            pipe.ltrim(key, 0, MAX_WAKES - 1)
            pipe.execute()

    def gate(self, queue_name: str) -> Gate:
        """The gate of the queue in this process; a forked child has its own, open ones."""
        return self._gates.setdefault((os.getpid(), queue_name), Gate())

    def in_hand(self, queue_name: str) -> set[str]:
        """The Redis ids of the queue's messages that a consumer of this process has handed out, till they are acknowledged
        or given back. It outlives the consumer, which is made anew after each connection error."""
        return self._in_hand.setdefault(queue_name, set())

    def key(self, name: str) -> str:
        return f"{self.namespace}:{name}"

    def consuming_client(self, timeout: float) -> redis.Redis:
        """A client for one consumer. Nothing is repeated on it: a fetch whose answer was lost would take further messages,
        and strand those of the first. Blocking for less than `timeout` seconds is safe, whatever the URL says."""
        client = connect(self._url)
        client.connection_pool.connection_kwargs |= {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        return client
