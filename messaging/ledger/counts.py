"""Blasts as they stand: how many sends have which status, and how fast they leave, at a flat cost.

Sums that the clock has folded plus what it has not folded yet (`messaging.models.counts`), read with the blast rows by
one statement: one snapshot, in which the counts of a blast always add up to its `planned`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from core.db.cursor import ledger_cursor
from messaging.domain.lifecycle import OPEN, BlastState, SendStatus

#: Seconds of acceptances that make the rate: long enough to smooth batches of 100 at ten requests a second, and a pause.
RATE_WINDOW = 60
#: Seconds that acceptances are counted together for it.
PACE_SECONDS = 5

# No delta below the floor is left. A floor above what this server has reached is another server's (a restored dump).
FLOOR = """
SELECT coalesce((SELECT floor FROM messaging_blast_fold WHERE floor <= pg_snapshot_xmin(pg_current_snapshot())::text::bigint), 0)
"""

_COLUMNS = (
    "id, name, state, category, channel, rail, created_at, launched_at, finished_at, not_before, expires_at, rows_read,"
    " planned, duplicates, rejected, isolated, hold_code, hold_detail, held_until, reason"
)

READ = f"""
WITH now AS MATERIALIZED (
    SELECT clock_timestamp() AS at, date_bin(%(step)s * interval '1 second',
        clock_timestamp() - (%(window)s - %(step)s) * interval '1 second', 'epoch') AS since
),
page AS MATERIALIZED (
    SELECT {_COLUMNS} FROM messaging_blasts
    WHERE tenant_id = %(tenant)s AND id >= %(first)s AND id <= %(last)s ORDER BY id DESC LIMIT %(limit)s
),
fresh AS MATERIALIZED (
    SELECT d.blast_id, d.status, sum(d.delta) AS n, sum(d.delta) FILTER (WHERE d.at >= now.since) AS recent
    FROM messaging_blast_deltas d, now
    WHERE d.xid >= ({FLOOR}) AND d.blast_id = ANY (ARRAY (SELECT id FROM page))
    GROUP BY d.blast_id, d.status
)
SELECT p.*,
       (SELECT jsonb_object_agg(c.status, c.n) FROM (
            SELECT a.status, sum(a.n) AS n
            FROM (SELECT k.status, k.n FROM messaging_blast_counts k WHERE k.blast_id = p.id
                  UNION ALL SELECT f.status, f.n FROM fresh f WHERE f.blast_id = p.id) a
            GROUP BY a.status
       ) c)::text,
       coalesce((SELECT sum(k.n) FROM messaging_blast_paces k WHERE k.blast_id = p.id AND k.at >= now.since), 0)
       + coalesce((SELECT f.recent FROM fresh f WHERE f.blast_id = p.id AND f.status = 'sent'), 0),
       extract(epoch FROM now.at - greatest(now.since, p.launched_at))::float8,
       (SELECT count(*) FROM messaging_blast_uploads u WHERE u.blast_id = p.id),
       EXISTS (SELECT FROM messaging_blast_uploads u
               WHERE u.blast_id = p.id AND u.finished_at IS NULL AND u.lease_until > now.at)
FROM page p, now
ORDER BY p.id DESC
"""


@dataclass(frozen=True, slots=True)
class BlastFacts:
    """A blast in one moment. `counts` has every status; its sum is `planned`."""

    id: UUID
    name: str
    state: BlastState
    category: str
    channel: str
    rail: str
    created_at: datetime
    launched_at: datetime | None
    finished_at: datetime | None
    not_before: datetime | None
    expires_at: datetime | None
    rows: int
    planned: int
    duplicates: int
    rejected: int
    isolated: bool
    hold_code: str
    hold_detail: str
    held_until: datetime | None
    reason: str  # why it was cancelled, if nobody asked for it
    counts: dict[SendStatus, int]
    rate: float  # sends accepted a second, over the last minute or since the launch
    uploads: int  # lists of recipients that were read into it, in part or whole
    uploading: bool  # one is being read now

    @property
    def open(self) -> int:
        return sum(self.counts[status] for status in OPEN)


_NIL, _MAX = UUID(int=0), UUID(int=2**128 - 1)


def blast_facts(tenant_id: int, blast_id: UUID) -> BlastFacts | None:
    """The tenant's blast; None if there is none, or if it is somebody else's."""
    return next(iter(_read(tenant_id, blast_id, blast_id, 1)), None)


def newest_blasts(tenant_id: int, limit: int, before: UUID | None = None) -> list[BlastFacts]:
    """Up to `limit` blasts of the tenant, newest first: the latest, or those older than `before`."""
    if before == _NIL:
        return []
    return _read(tenant_id, _NIL, UUID(int=before.int - 1) if before else _MAX, limit)


def _read(tenant_id: int, first: UUID, last: UUID, limit: int) -> list[BlastFacts]:
    parameters = {
        "tenant": tenant_id,
        "first": first,
        "last": last,
        "limit": limit,
        "window": RATE_WINDOW,
        "step": PACE_SECONDS,
    }
    with ledger_cursor() as cursor:
        return [_facts(row) for row in cursor.all(READ, parameters)]


def _facts(row: tuple[Any, ...]) -> BlastFacts:
    *columns, counts, accepted, seconds, uploads, uploading = row
    values = dict(zip(BlastFacts.__slots__, columns, strict=False))
    values["state"] = BlastState(values["state"])
    found = json.loads(counts or "{}")
    values["counts"] = {status: int(found.get(status, 0)) for status in SendStatus}
    values["rate"] = round(float(accepted) / max(seconds, 1.0), 2)
    return BlastFacts(**values, uploads=uploads, uploading=uploading)
