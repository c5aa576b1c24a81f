"""One chunk, one transaction: its sends, its rejected rows and how far the list was read become visible together.

So a planner that is killed leaves a blast that says exactly which rows are in it. The blast row is locked first and
must stand where this planner left it: a second planner, a cancellation or a launch is noticed before anything is written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

import psycopg
from django.db import connection, transaction
from psycopg.rows import TupleRow

from core.db import ledger_cursor
from messaging.errors import Conflict, NotFound
from messaging.lifecycle import BlastState
from messaging.planner.encode import Chunk
from messaging.planner.rows import Reject


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a blast: rows = planned + duplicates + rejected, at every commit."""

    rows: int
    planned: int
    duplicates: int
    rejected: int


_LOCK = """
SELECT state, rows_read, planned, duplicates, rejected FROM messaging_blasts WHERE id = %(blast)s FOR NO KEY UPDATE
"""

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
INSERT INTO messaging_blast_rejects (blast_id, line, code, reason)
SELECT %(blast)s, r.line, r.code, r.reason
FROM unnest(%(lines)s::bigint[], %(codes)s::text[], %(reasons)s::text[]) AS r (line, code, reason)
"""

_PROGRESS = """
UPDATE messaging_blasts SET rows_read = %(rows)s, planned = %(planned)s, duplicates = %(duplicates)s, rejected = %(rejected)s
WHERE id = %(blast)s
"""

_KNOWN = """
SELECT (SELECT count(*) FROM messaging_sends WHERE blast_id = %(blast)s AND fingerprint = ANY(%(fingerprints)s::bytea[])),
       (SELECT count(*) FROM messaging_blast_rejects WHERE blast_id = %(blast)s AND line = ANY(%(lines)s::bigint[]))
"""


def lock_planning(blast_id: UUID) -> Counts:
    """Lock the blast for this transaction. Raises NotFound, Conflict (`blast_cancelled`, `blast_launched`)."""
    with ledger_cursor() as cursor:
        found = cursor.one(_LOCK, {"blast": blast_id})
    if found is None:
        raise NotFound("unknown_blast", "There is no such blast.")
    state, *counts = found
    if state == BlastState.CANCELLED:
        raise Conflict("blast_cancelled", "The blast was cancelled: nothing of it is sent. Plan a new one.")
    if state != BlastState.PLANNING:
        raise Conflict("blast_launched", "The blast was launched: recipients can no longer be added. Plan a new one.")
    return Counts(*counts)


def write_chunk(blast_id: UUID, before: Counts, chunk: Chunk) -> Counts:
    """Add `chunk` to the blast, which this planner left at `before`. Returns the counts after it.

    Raises what `lock_planning` raises, and Conflict `planning_in_progress`; then nothing of the chunk was written.
    """
    with transaction.atomic():
        if lock_planning(blast_id) != before:
            raise Conflict(
                "planning_in_progress", "Another planner is reading recipients into this blast. Let it finish."
            )
        planned = _insert(blast_id, chunk)
        valid = len(chunk.fingerprints)
        after = Counts(
            before.rows + chunk.rows,
            before.planned + planned,
            before.duplicates + valid - planned,
            before.rejected + len(chunk.rejects),
        )
        with ledger_cursor() as cursor:
            if chunk.rejects:
                cursor.run(_REJECTS, {"blast": blast_id, **_columns(chunk.rejects)})
            cursor.run(
                _PROGRESS,
                {
                    "blast": blast_id,
                    "rows": after.rows,
                    "planned": after.planned,
                    "duplicates": after.duplicates,
                    "rejected": after.rejected,
                },
            )
    return after


def has_all_of(blast_id: UUID, chunk: Chunk) -> bool:
    """Whether the blast has a send for every good row of `chunk`, and has rejected the lines of the others."""
    distinct = sorted(set(chunk.fingerprints))
    lines = [reject.line for reject in chunk.rejects]
    with ledger_cursor() as cursor:
        found = cursor.one(_KNOWN, {"blast": blast_id, "fingerprints": distinct, "lines": lines})
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
