"""Dramatiq's Redis broker, with consumers that are woken (`core.broker.consumer`) and a producer that gives up quickly.

Nothing is delayed in Redis: there are no delay queues, and what has to wait waits in the ledger.

Leans on private parts of dramatiq, which is pinned to 2.2; `tests/core/broker/test_contract.py` holds each of them: the
`dispatch` script with its arguments and keys, `_RedisConsumer`, what `Worker` and `ConsumerThread` do with a consumer.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import dramatiq

from core.broker.consumer import WakingConsumer
from core.broker.transport import Transport


class RailBroker(Transport):
    @property
    def consumer_class(self) -> type[WakingConsumer]:
        return WakingConsumer

    def declare_queue(self, queue_name: str) -> None:
        """As dramatiq's, without a delay queue (and so without a second consumer for each queue)."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def enqueue(
        self, message: dramatiq.Message[Any], *, delay: int | None = None, at_most: int = 0
    ) -> dramatiq.Message[Any]:
        """As dramatiq's. With `at_most`, left out if so many messages wait on the queue: for what says no more than they do.

        Raises redis.RedisError, ValueError if there is a `delay`.
        """
        if delay is not None:
            raise ValueError("The broker delays nothing. Let the ledger schedule it: a send's not_before, or a job's.")
        sent = message.copy(options={"redis_message_id": str(uuid4())})  # its own: a message may be enqueued again
        self.emit_before("enqueue", sent, None)
        self.do_enqueue(sent.queue_name, sent.options["redis_message_id"], sent.encode(), at_most)
        self.emit_after("enqueue", sent, None)
        return sent
