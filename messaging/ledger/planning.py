"""One chunk, one transaction: its sends, its rejected rows and how far the list was read become visible together.

So a planner that is killed leaves a blast that says exactly which rows are in it. The blast row is locked first, and the
upload must stand where this planner left it: a second planner, a cancellation or a launch is noticed before anything is
written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import psycopg
from django.db import connection, transaction
from psycopg.rows import TupleRow

from core.db.cursor import ledger_cursor
from messaging.ledger.uploads import LEASE_SECONDS, Counts, Upload, check_undisturbed, lock_planning


class Reject(NamedTuple):
    """A row that becomes no send. `reason` says what is wrong with it and never quotes it."""

    line: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ready for one transaction. `rows` = len(fingerprints) + len(rejects)."""

    rows: int
    staged: bytes  # `(id uuid, fingerprint bytea, sealed bytea)` in PostgreSQL's binary COPY format, ids ascending
    fingerprints: Sequence[bytes]
    rejects: Sequence[Reject]


# One per connection. Created in every transaction that uses it (a connection pooler may give each another server
# connection), emptied before use (inside a caller's transaction there is no commit that would).
_STAGE = """
CREATE TEMPORARY TABLE IF NOT EXISTS messaging_planner_stage (id uuid NOT NULL, fingerprint bytea NOT NULL, sealed bytea NOT NULL)
ON COMMIT DELETE ROWS
"""
_EMPTY = "TRUNCATE messaging_planner_stage"
_COPY = "COPY messaging_planner_stage (id, fingerprint, sealed) FROM STDIN (FORMAT binary)"

# COPY cannot skip duplicates, hence the stage. By id, so that of two equal recipients the first stays, and so that the
# rows lie in the table in the order in which they will be claimed.
_INSERT = """
INSERT INTO messaging_sends (id, tenant_id, blast_id, content_id, channel, category, rail, priority, status, not_before,
                             expires_at, fingerprint, sealed, attempts, created_at)
SELECT s.id, b.tenant_id, b.id, b.content_id, b.channel, b.category, b.rail, b.priority,
       CASE WHEN b.not_before > t.now THEN 'scheduled' ELSE 'queued' END, coalesce(b.not_before, t.now),
       b.expires_at, s.fingerprint, s.sealed, 0, t.now
FROM messaging_planner_stage s, messaging_blasts b, (SELECT clock_timestamp() AS now OFFSET 0) t
WHERE b.id = %(blast)s
ORDER BY s.id
ON CONFLICT (blast_id, fingerprint) WHERE blast_id IS NOT NULL DO NOTHING
"""

_REJECTS = """
INSERT INTO messaging_blast_rejects (blast_id, upload, line, code, reason)
SELECT %(blast)s, %(upload)s, r.line, r.code, r.reason
FROM unnest(%(lines)s::bigint[], %(codes)s::text[], %(reasons)s::text[]) AS r (line, code, reason)
"""

_PROGRESS = """
WITH whole AS (
    UPDATE messaging_blasts
    SET rows_read = rows_read + %(rows)s, planned = planned + %(planned)s, duplicates = duplicates + %(duplicates)s,
        rejected = rejected + %(rejected)s
    WHERE id = %(blast)s
)
UPDATE messaging_blast_uploads
SET rows_read = rows_read + %(rows)s, planned = planned + %(planned)s, duplicates = duplicates + %(duplicates)s,
    rejected = rejected + %(rejected)s, lease_until = clock_timestamp() + %(lease)s * interval '1 second'
WHERE blast_id = %(blast)s AND number = %(upload)s
RETURNING lease_until
"""

_KNOWN = """
SELECT (SELECT count(*) FROM messaging_sends WHERE blast_id = %(blast)s AND fingerprint = ANY(%(fingerprints)s::bytea[])),
       (SELECT count(*) FROM messaging_blast_rejects
        WHERE blast_id = %(blast)s AND upload = %(upload)s AND line = ANY(%(lines)s::bigint[]))
"""


def write_chunk(upload: Upload, chunk: Chunk) -> Counts:
    """Add `chunk` to the blast. Returns the counts of the upload after it, and moves `upload` on.

    Raises what `lock_planning` and `check_undisturbed` raise, and TooLarge `priority_blast_too_large`; then nothing of the
    chunk was written.
    """
    with transaction.atomic():
        lock_planning(upload.blast_id)
        room = check_undisturbed(upload)
        planned = _insert(upload.blast_id, chunk)
        room.check(planned)
        where = {"blast": upload.blast_id, "upload": upload.number}
        done = Counts(chunk.rows, planned, len(chunk.fingerprints) - planned, len(chunk.rejects))
        with ledger_cursor() as cursor:
            if chunk.rejects:
                cursor.run(_REJECTS, where | _columns(chunk.rejects))
            moved = cursor.one(
                _PROGRESS,
                where
                | {
                    "rows": done.rows,
                    "planned": done.planned,
                    "duplicates": done.duplicates,
                    "rejected": done.rejected,
                    "lease": LEASE_SECONDS,
                },
            )
            assert moved is not None
    upload.counts, upload.lease = upload.counts.plus(done), moved[0]
    return upload.counts


def has_all_of(upload: Upload, chunk: Chunk) -> bool:
    """Whether the blast has a send for every good row of `chunk`, and the upload rejected the lines of the others."""
    distinct = sorted(set(chunk.fingerprints))
    lines = [reject.line for reject in chunk.rejects]
    parameters = {"blast": upload.blast_id, "upload": upload.number, "fingerprints": distinct, "lines": lines}
    with ledger_cursor() as cursor:
        found = cursor.one(_KNOWN, parameters)
    return found == (len(distinct), len(lines))


def _insert(blast_id: UUID, chunk: Chunk) -> int:
    """The number of sends written: those whose recipient the blast did not have."""
    if not chunk.fingerprints:
        return 0
    connection.ensure_connection()
    with connection.wrap_database_errors, psycopg.Cursor[TupleRow](connection.connection) as cursor:
        cursor.execute(_STAGE)
        cursor.execute(_EMPTY)
        with cursor.copy(_COPY) as copy:
            copy.write(chunk.staged)
        cursor.execute(_INSERT, {"blast": blast_id})
        return cursor.rowcount


def _columns(rejects: Collection[Reject]) -> dict[str, list[int] | list[str]]:
    return {
        "lines": [reject.line for reject in rejects],
        "codes": [reject.code for reject in rejects],
        "reasons": [reject.reason for reject in rejects],
    }
