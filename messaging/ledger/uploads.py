"""Uploads: each list of recipients that is read into a blast, one after another, has a number and counts of its own.

While a list is read, its row carries a lease, renewed with every chunk. Until that runs out no other list may be read
into the blast and it cannot be launched, so that a vanished reader costs the next one a minute and nothing else.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Self
from uuid import UUID

from django.db import Error, transaction

from core.db.cursor import ledger_cursor
from messaging.domain.errors import Conflict, NotFound, TooLarge
from messaging.domain.lifecycle import BlastState
from messaging.models.allowance import MAX_PRIORITY_BLAST

#: Seconds for which an upload belongs to its reader. Longer than a chunk takes (`rows.CHUNK_SECONDS`) together with the
#: longest silence of a client that an HTTP body is allowed.
LEASE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Counts:
    """Of an upload: rows = planned + duplicates + rejected, at every commit."""

    rows: int = 0
    planned: int = 0
    duplicates: int = 0
    rejected: int = 0

    def plus(self, more: Self) -> Counts:
        return Counts(
            self.rows + more.rows,
            self.planned + more.planned,
            self.duplicates + more.duplicates,
            self.rejected + more.rejected,
        )


@dataclass(frozen=True, slots=True)
class Room:
    """What a blast has, and may have: one that is not marketing goes before everybody's marketing (None: marketing)."""

    planned: int
    most: int | None

    def check(self, more: int) -> None:
        """Raise TooLarge unless there is room for so many more."""
        if self.most is not None and self.planned + more > self.most:
            raise TooLarge(
                "priority_blast_too_large",
                f"A blast that is not marketing has at most {self.most:,} recipients here. Make it marketing, or ask the"
                " operator to allow more.",
                field="recipients",
            )


@dataclass(slots=True)
class Upload:
    """An upload as its reader knows it. `lease`: the end that he set last, by which he knows it for his; None: it has
    ended, and is only compared with."""

    blast_id: UUID
    number: int
    counts: Counts
    lease: datetime | None


_LOCK = "SELECT state FROM messaging_blasts WHERE id = %(blast)s FOR NO KEY UPDATE"

_BEING_READ = """
SELECT number, extract(epoch FROM lease_until - clock_timestamp())::float8 FROM messaging_blast_uploads
WHERE blast_id = %(blast)s AND finished_at IS NULL AND lease_until > clock_timestamp() AND number <> ALL (%(but)s::int[])
LIMIT 1
"""

_OPEN = """
INSERT INTO messaging_blast_uploads AS u (blast_id, number, rows_read, planned, duplicates, rejected, lease_until)
SELECT %(blast)s, coalesce(%(number)s::int, (SELECT max(number) FROM messaging_blast_uploads WHERE blast_id = %(blast)s) + 1, 1),
       0, 0, 0, 0, clock_timestamp() + %(lease)s * interval '1 second'
ON CONFLICT (blast_id, number) DO UPDATE SET lease_until = excluded.lease_until, finished_at = NULL
RETURNING number, rows_read, planned, duplicates, rejected, lease_until
"""

_WHERE_IT_STANDS = """
SELECT u.rows_read, u.planned, u.duplicates, u.rejected, EXISTS (
    SELECT FROM messaging_blast_uploads o
    WHERE o.blast_id = u.blast_id AND o.number <> u.number AND o.finished_at IS NULL AND o.lease_until > clock_timestamp()
), b.planned, CASE WHEN b.rail <> 'marketing' THEN coalesce(a.max_priority_blast, %(default)s) END
FROM messaging_blast_uploads u JOIN messaging_blasts b ON b.id = u.blast_id
     LEFT JOIN messaging_tenant_allowances a ON a.tenant_id = b.tenant_id
WHERE u.blast_id = %(blast)s AND u.number = %(number)s
"""

_KEEP = """
UPDATE messaging_blast_uploads SET lease_until = clock_timestamp() + %(seconds)s * interval '1 second'
WHERE blast_id = %(blast)s AND number = %(number)s AND lease_until = %(lease)s
RETURNING lease_until
"""

_LEAVE = """
UPDATE messaging_blast_uploads SET lease_until = NULL
WHERE blast_id = %(blast)s AND number = %(number)s AND lease_until = %(lease)s
"""

_FINISH = """
UPDATE messaging_blast_uploads SET lease_until = NULL, finished_at = clock_timestamp()
WHERE blast_id = %(blast)s AND number = %(number)s
"""


def lock_planning(blast_id: UUID) -> None:
    """Lock the blast for this transaction. Raises NotFound, Conflict (`blast_cancelled`, `blast_launched`)."""
    with ledger_cursor() as cursor:
        found = cursor.one(_LOCK, {"blast": blast_id})
    if found is None:
        raise NotFound("unknown_blast", "There is no such blast.")
    if found[0] == BlastState.CANCELLED:
        raise Conflict("blast_cancelled", "The blast was cancelled: nothing of it is sent. Plan a new one.")
    if found[0] != BlastState.PLANNING:
        raise Conflict("blast_launched", "The blast was launched: recipients can no longer be added. Plan a new one.")


def open_upload(blast_id: UUID, number: int | None = None, *, join: bool = False) -> Upload:
    """Begin a list, or go on with the one of that `number`, in the caller's transaction (in which the blast is locked).

    Raises what `lock_planning` raises, and Conflict `upload_in_progress` while another list is read; also while this one
    is, unless `join`: then two read the same list, and `write_chunk` tells the later one so.
    """
    lock_planning(blast_id)
    check_none_is_read(blast_id, but=number if join else None)
    with ledger_cursor() as cursor:
        row = cursor.one(_OPEN, {"blast": blast_id, "number": number, "lease": LEASE_SECONDS})
    assert row is not None
    number, *counts, lease = row
    return Upload(blast_id, number, Counts(*counts), lease)


def check_none_is_read(blast_id: UUID, *, but: int | None = None) -> None:
    """Raise Conflict `upload_in_progress` if a list is being read into the locked blast (another than number `but`)."""
    with ledger_cursor() as cursor:
        found = cursor.one(_BEING_READ, {"blast": blast_id, "but": [] if but is None else [but]})
    if found is not None:
        raise Conflict(
            "upload_in_progress",
            "A list of recipients is being read into this blast. Wait until it has ended, then try again.",
            retry_after=max(1, math.ceil(found[1])),
        )


def check_undisturbed(upload: Upload) -> Room:
    """Raise Conflict `planning_in_progress` if somebody else reads this list, or another into the same (locked) blast.

    Returns how much room the blast has.
    """
    where = {"blast": upload.blast_id, "number": upload.number, "default": MAX_PRIORITY_BLAST}
    with ledger_cursor() as cursor:
        found = cursor.one(_WHERE_IT_STANDS, where)
    assert found is not None
    *here, another, planned, most = found
    if another or Counts(*here) != upload.counts:
        raise Conflict("planning_in_progress", "Another planner is reading recipients into this blast. Let it finish.")
    return Room(planned, most)


def keep_lease(upload: Upload) -> None:
    """Renew the lease while nothing is written, if it is still the reader's."""
    if upload.lease is None:
        return
    with ledger_cursor() as cursor:
        row = cursor.one(_KEEP, _key(upload) | {"seconds": LEASE_SECONDS})
    if row is not None:
        upload.lease = row[0]


def leave_upload(upload: Upload) -> None:
    """The reader stops before the end: the next one need not wait. What was written stays.

    If the database is away (maybe that is why he stops), the lease runs out by itself.
    """
    with suppress(Error), transaction.atomic(), ledger_cursor() as cursor:
        cursor.run(_LEAVE, _key(upload))


def finish_upload(upload: Upload) -> None:
    """The list was read to its end."""
    with transaction.atomic(), ledger_cursor() as cursor:
        cursor.run(_FINISH, {"blast": upload.blast_id, "number": upload.number})


def _key(upload: Upload) -> dict[str, object]:
    return {"blast": upload.blast_id, "number": upload.number, "lease": upload.lease}
