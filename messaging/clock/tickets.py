"""Re-ticketing: a rail with work and an empty queue gets a ticket, one with a ticket that nobody fetches a wake. This makes
lost tickets, a flushed Redis and workers that vanished or are frozen a matter of half a second."""

from __future__ import annotations

from core.broker import queues
from messaging.domain.rails import Rail, queue_name
from messaging.ledger.backlog import has_work
from messaging.providers.registry import adapters
from messaging.services.tickets import send_ticket


def re_ticket() -> int:
    """Returns the number of tickets left. Raises redis.RedisError."""
    left = 0
    for channel, adapter in adapters().items():
        for rail in Rail:
            queue = queue_name(channel, rail)
            if queues.depth(queue):
                queues.wake(queue)  # a frozen worker that stood in line first has taken the last one
            elif has_work(adapter.name, channel, rail):
                left += send_ticket(channel, rail)
    return left
