"""Which contents the next sends of some lanes have, in their order: asked before a token is taken, so that nothing is compiled
after it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from core.db.cursor import ledger_cursor
from messaging.domain.rails import Channel, Rail
from messaging.ledger.candidates import Lane
from messaging.ledger.due import single_due

_OF_SINGLES = f"""
SELECT l.tenant_id, l.priority, array_agg(s.content_id ORDER BY s.id)
FROM unnest(%(tenants)s::bigint[], %(priorities)s::smallint[], %(takes)s::int[]) AS l (tenant_id, priority, take)
CROSS JOIN LATERAL (
    SELECT s.id, s.content_id FROM messaging_sends s
    WHERE {single_due("l.priority")} AND s.tenant_id = l.tenant_id
    ORDER BY s.id LIMIT l.take
) s
GROUP BY l.tenant_id, l.priority
"""


def of_singles(
    channel: Channel, rail: Rail, lanes: Sequence[Lane], takes: Sequence[int]
) -> dict[tuple[int, int], list[int]]:
    """(tenant, priority) → the content of each of the next `takes[i]` sends of lane i, which holds single sends."""
    with ledger_cursor() as sql:
        rows = sql.all(
            _OF_SINGLES,
            {
                "channel": channel,
                "rail": rail,
                "tenants": [lane.tenant for lane in lanes],
                "priorities": [lane.priority for lane in lanes],
                "takes": list(takes),
            },
        )
    return {(tenant, priority): contents for tenant, priority, contents in rows}


def of_blasts(blasts: Collection[UUID]) -> dict[UUID, int]:
    """The content of each blast; it never changes."""
    with ledger_cursor() as sql:
        rows = sql.all(
            "SELECT id, content_id FROM messaging_blasts WHERE id = ANY (%(ids)s::uuid[])", {"ids": list(blasts)}
        )
    return dict(rows)
