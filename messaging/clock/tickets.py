"""Re-ticketing: a rail with work and an empty queue gets a ticket, one with a ticket that nobody fetches a wake. This makes
lost tickets, a flushed Redis and workers that vanished or are frozen a matter of half a second."""

from __future__ import annotations

from core.broker import queues
from core.db.cursor import ledger_cursor
from messaging.domain.rails import PRIORITIES, Channel, Rail, queue_name
from messaging.ledger.due import LAPSED, active, blasts_ring, open_blasts, singles_may_go, singles_ring
from messaging.providers.registry import adapters
from messaging.services.tickets import send_ticket


def statement(rail: Rail) -> str:
    """Something may go, or a batch must be taken up again. What is closed is no work."""
    rings = ", ".join(
        ring(f"{name}{p}", priority=p)
        for p in PRIORITIES[rail]
        for name, ring in (("s", singles_ring), ("b", blasts_ring))
    )
    singles = [f"(SELECT FROM s{p} r WHERE r.hit AND {singles_may_go('r.tenant_id', p)})" for p in PRIORITIES[rail]]
    blasts = [
        f"(SELECT FROM b{p} r CROSS JOIN LATERAL ({open_blasts('r.tenant_id', p)}) b"
        f" WHERE r.hit AND {active('r.tenant_id')})"
        for p in PRIORITIES[rail]
    ]
    return f"WITH RECURSIVE {rings} SELECT " + " OR ".join(
        f"EXISTS {found}" for found in [*singles, *blasts, f"(SELECT {LAPSED})"]
    )


_STATEMENTS = {rail: statement(rail) for rail in Rail}


def has_work(provider: str, channel: Channel, rail: Rail) -> bool:
    """The rail has sends that may go, or a batch of its provider that must be taken up again."""
    with ledger_cursor() as cursor:
        row = cursor.one(_STATEMENTS[rail], {"provider": provider, "channel": channel, "rail": rail})
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
