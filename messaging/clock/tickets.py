"""Re-ticketing: a rail with work and an empty queue gets a ticket, one with a ticket that nobody fetches a wake. This makes
lost tickets, a flushed Redis and workers that vanished or are frozen a matter of half a second."""

from __future__ import annotations

from core import queues
from core.db import ledger_cursor
from messaging.ledger.candidates import LAPSED
from messaging.providers.registry import adapters
from messaging.rails import PRIORITIES, Channel, Rail, queue_name
from messaging.tickets import send_ticket

_WORK = f"""
SELECT EXISTS (
    SELECT FROM unnest(%(priorities)s::smallint[]) p (priority), LATERAL (
        SELECT FROM messaging_sends s
        WHERE s.channel = %(channel)s AND s.rail = %(rail)s AND s.priority = p.priority
          AND s.status = 'queued' AND s.blast_id IS NULL LIMIT 1
    ) s
) OR EXISTS (
    SELECT FROM messaging_blasts b
    WHERE b.channel = %(channel)s AND b.rail = %(rail)s AND b.priority = ANY (%(priorities)s::smallint[])
      AND b.state = 'running' AND b.has_due
) OR EXISTS (
    SELECT {LAPSED}
)
"""


def has_work(provider: str, channel: Channel, rail: Rail) -> bool:
    """The rail has due sends, or a batch of its provider that must be taken up again."""
    parameters = {"provider": provider, "channel": channel, "rail": rail, "priorities": list(PRIORITIES[rail])}
    with ledger_cursor() as cursor:
        row = cursor.one(_WORK, parameters)
    return bool(row and row[0])


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
