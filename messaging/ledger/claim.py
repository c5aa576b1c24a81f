"""The claim: sends become bound to a batch, in one short transaction, before any of them is looked into.

`lock_lanes`, `take`, `put_back` for those that go another time, and `open_batch`: the caller holds the transaction. Lanes are
locked by a statement of their own, so that the next one sees what a pause committed meanwhile. What follows, until the
batch may be requested, is `ledger.preparing`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from core.db.cursor import ledger_cursor
from messaging.domain.lane import LaneKey
from messaging.domain.rails import RAIL_OF, Category, Channel, Rail
from messaging.ledger import record
from messaging.ledger.claim_gate import FREE_BLASTS, FREE_TENANTS
from messaging.ledger.due import BLAST_HELD, QUEUED_OF_BLAST, active, single_due, singles_may_go
from messaging.ledger.record import Failure

log = logging.getLogger(__name__)

#: Seconds for which a batch that may be requested belongs to its worker.
LEASE = 30.0
#: Seconds for which a batch that is being prepared does. No request of it has left, so it costs nobody a double to release it
#: soon after its worker has died; one that is only slow finds its fence gone, and drops what it has prepared.
PREPARING_LEASE = 2.0


@dataclass(frozen=True, slots=True)
class Take:
    """How many sends of a lane a grant lets through: the oldest ones behind the first `skip`."""

    tenant: int
    priority: int
    blast: UUID | None
    sends: int
    skip: int = 0


@dataclass(frozen=True, slots=True)
class BoundSend:
    """A send in a batch, as far as rendering and recording need it."""

    id: UUID
    tenant: int
    blast: UUID | None
    content: int
    priority: int
    sealed: bytes
    expires_at: datetime | None
    attempts: int
    mishaps: int = 0  # see models.Send
    held: float | None = None  # seconds since it was found that it cannot be opened

    @property
    def lane(self) -> LaneKey:
        return LaneKey(self.tenant, self.blast, self.priority if self.blast is None else None)


_LOCK_TENANTS = f"SELECT id FROM core_tenants WHERE id = ANY ({FREE_TENANTS}) ORDER BY id FOR SHARE SKIP LOCKED"
# Blasts FOR KEY SHARE: the clock writes their hints all the time, and must neither stop a claim nor wait for one. Whoever has
# to keep claims out (pause, cancel, hold) closes the gate and takes a blast FOR UPDATE.
_LOCK_BLASTS = f"SELECT id FROM messaging_blasts WHERE id = ANY ({FREE_BLASTS}) ORDER BY id FOR KEY SHARE SKIP LOCKED"


def lock_lanes(takes: Sequence[Take]) -> list[Take]:
    """Hold the lanes, so that whoever pauses or cancels one waits for this claim. Returns the takes whose lane
    is held: one that somebody is changing at this moment is left out, and nobody else waits for him."""
    with ledger_cursor() as sql:
        tenants = {t.tenant for t in takes if t.blast is None}
        blasts = {t.blast for t in takes if t.blast is not None}
        held = {row[0] for row in sql.all(_LOCK_TENANTS, {"ids": list(tenants)})} if tenants else set()
        held |= {row[0] for row in sql.all(_LOCK_BLASTS, {"ids": list(blasts)})} if blasts else set()
    return [t for t in takes if (t.tenant if t.blast is None else t.blast) in held]


# The update takes its ids as an array: joined to the picked rows, a generic plan would hash the whole ledger.
_TAKE = f"""
WITH picked AS (
    SELECT s.id
    FROM unnest(%(tenants)s::bigint[], %(sends)s::int[]) AS l (tenant_id, take)
    CROSS JOIN LATERAL (
        SELECT s.id FROM messaging_sends s
        WHERE {single_due()} AND s.tenant_id = l.tenant_id
        ORDER BY s.id LIMIT l.take FOR UPDATE SKIP LOCKED
    ) s
    WHERE {singles_may_go("l.tenant_id")}
    UNION ALL
    SELECT s.id
    FROM unnest(%(blasts)s::uuid[], %(blast_sends)s::int[]) AS l (blast_id, take)
    JOIN messaging_blasts b ON b.id = l.blast_id AND b.state = 'running' AND NOT {BLAST_HELD}
    CROSS JOIN LATERAL (
        SELECT s.id {QUEUED_OF_BLAST}
        ORDER BY s.id LIMIT l.take FOR UPDATE SKIP LOCKED
    ) s
    WHERE {active("b.tenant_id")}
)
UPDATE messaging_sends s
SET status = CASE WHEN s.expires_at <= clock_timestamp() THEN 'expired' ELSE 'sending' END,
    batch_id = CASE WHEN s.expires_at <= clock_timestamp() THEN s.batch_id ELSE %(batch)s END
WHERE s.id = ANY (ARRAY (SELECT id FROM picked)) AND s.status = 'queued' AND s.rail = %(rail)s AND s.channel = %(channel)s
RETURNING s.id, s.tenant_id, s.blast_id, s.content_id, s.priority, s.sealed, s.expires_at,
          s.attempts, s.mishaps, extract(epoch FROM clock_timestamp() - s.held_since)::float8, s.status, s.category
"""


# A statement of its own: of a lane on trial, which is the only one in its batch.
_TAKE_BEHIND = _TAKE.replace("LIMIT l.take", "LIMIT l.take OFFSET %(skip)s")


def take(
    channel: Channel, rail: Rail, priority: int, batch: UUID, takes: Sequence[Take]
) -> tuple[list[BoundSend], int]:
    """Bind up to `takes` due sends of one priority to `batch`. Returns them (in no order) and how many expired.

    Lanes that were paused, cancelled or held since the candidates were read give nothing.
    """
    singles = [t for t in takes if t.blast is None]
    blasts = [t for t in takes if t.blast is not None]
    with ledger_cursor() as sql:
        rows = sql.all(
            _TAKE_BEHIND if takes[0].skip else _TAKE,
            {
                "channel": channel,
                "rail": rail,
                "priority": priority,
                "batch": batch,
                "tenants": [t.tenant for t in singles],
                "sends": [t.sends for t in singles],
                "blasts": [t.blast for t in blasts],
                "blast_sends": [t.sends for t in blasts],
                "skip": takes[0].skip,
            },
        )
    bound, expired, astray = [], 0, dict[UUID, Failure]()
    for pk, tenant, blast, content, prio, sealed, expires_at, attempts, mishaps, held, status, category in rows:
        if RAIL_OF[Category(category)] is not rail:
            astray[pk] = Failure("wrong_rail", f"A {category} send does not belong on the {rail} rail.")
        elif status == "expired":
            expired += 1
        else:
            bound.append(
                BoundSend(pk, tenant, blast, content, prio, bytes(sealed), expires_at, attempts, mishaps, held)
            )
    # The table's CHECK says the same. A send on the wrong rail would break the one promise there is: it ends here, alone.
    if astray:
        log.error("send_on_wrong_rail", extra={"sends": len(astray), "rail": rail})
        record.fail(batch, astray)
    return bound, expired


_PUT_BACK = """
UPDATE messaging_sends s
SET status = CASE
    WHEN EXISTS (SELECT FROM messaging_blasts b WHERE b.id = s.blast_id AND b.state = 'cancelled') THEN 'cancelled'
    ELSE 'queued'
END
WHERE s.id = ANY (%(ids)s::uuid[]) AND s.batch_id = %(batch)s AND s.status = 'sending'
"""


def put_back(batch: UUID, sends: Sequence[BoundSend]) -> None:
    """Undo the claim of `sends`: they go with another request. In the claim's transaction, or after
    `preparing.make_ready`."""
    if sends:
        with ledger_cursor() as sql:
            sql.run(_PUT_BACK, {"ids": [s.id for s in sends], "batch": batch})


# Committed without waiting for the disk: what becomes of it is decided by the next commit, which waits for both.
_OPEN = """
WITH job AS (
    INSERT INTO core_processed_jobs (job_key, fence, lease_until, created_at)
    VALUES ('batch:' || %(batch)s::text, 1, clock_timestamp() + %(lease)s * interval '1 second', clock_timestamp())
)
INSERT INTO messaging_batches (id, provider, channel, rail, state, send_ids, idempotency_key, rendered_at, attempts, created_at)
VALUES (%(batch)s, %(provider)s, %(channel)s, %(rail)s, 'preparing', %(sends)s::uuid[], %(key)s, %(rendered_at)s, 1,
        clock_timestamp())
RETURNING set_config('synchronous_commit', 'off', true)
"""


def open_batch(
    batch: UUID, *, provider: str, channel: Channel, rail: Rail, sends: Sequence[UUID], rendered_at: datetime
) -> None:
    """Write the batch, to be prepared, and its job, leased for `PREPARING_LEASE` seconds under fence 1."""
    with ledger_cursor() as sql:
        sql.run(
            _OPEN,
            {
                "batch": batch,
                "lease": PREPARING_LEASE,
                "provider": provider,
                "channel": channel,
                "rail": rail,
                "sends": list(sends),
                "key": str(batch),
                "rendered_at": rendered_at,
            },
        )
