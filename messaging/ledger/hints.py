"""Hints (`models.live.BlastHint`) as far as they are not the clock's: where somebody makes a blast due, or stops it."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from core.db.cursor import ledger_cursor

# A hint that is too low costs nothing, one that is too high half a second: the clock writes it from facts.
_SET = """
INSERT INTO messaging_blast_hints AS h (blast_id, channel, rail, priority, tenant_id, has_due, low)
SELECT b.id, b.channel, b.rail, b.priority, b.tenant_id, true, d.low
FROM unnest(%(blasts)s::uuid[], %(lows)s::uuid[]) AS d (blast_id, low) JOIN messaging_blasts b ON b.id = d.blast_id
WHERE b.state = 'running'
ORDER BY b.id
ON CONFLICT (blast_id) DO UPDATE SET has_due = true, low = CASE WHEN h.low IS NOT NULL THEN least(h.low, excluded.low) END
"""


def first_due(blast: UUID) -> UUID | None:
    with ledger_cursor() as sql:
        found = sql.one(
            "SELECT id FROM messaging_sends WHERE blast_id = %(blast)s AND status = 'queued' ORDER BY id LIMIT 1",
            {"blast": blast},
        )
    return found[0] if found else None


def set_due(lows: Mapping[UUID, UUID]) -> None:
    """These blasts (locked, and those of them that are running) have something due, from this send on."""
    if lows:
        with ledger_cursor() as sql:
            sql.run(_SET, {"blasts": list(lows), "lows": list(lows.values())})


def forget(blasts: list[UUID]) -> None:
    """Nothing goes of these any more."""
    if blasts:
        with ledger_cursor() as sql:
            sql.run("DELETE FROM messaging_blast_hints WHERE blast_id = ANY (%(blasts)s::uuid[])", {"blasts": blasts})
