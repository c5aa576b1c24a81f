"""Sending again what failed or was resolved: which sends, what may be done with each, and the step itself.

`of_blast`, `failed_because` and `ambiguous_because` give ids a page at a time; `verdicts` says of each whether it may be
redriven, and `move` does it, both in the caller's transaction. No statement looks at more than `PAGE` sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from core.db.cursor import ledger_cursor
from messaging.domain.lifecycle import BlastState, SendStatus
from messaging.domain.rails import Channel, Rail
from messaging.ledger import hints

#: Sends of one transaction, and entries of an index that one page looks at.
PAGE = 5_000
#: Batches of one page of ambiguous sends: of a hundred each, as many sends as a page has.
_BATCHES = 50


class Verdict(StrEnum):
    """What is said of a send that somebody wants to redrive. All but `MAY` leave it as it is."""

    MAY = "may"
    UNKNOWN = "unknown"  # no such send (of this tenant)
    WAITING = "waiting"  # on its way already: the other click was faster
    SENT = "sent"
    CANCELLED = "cancelled"  # the send, or its blast
    EXPIRED = "expired"  # it has ended so, or would at once
    NEEDS_ACCEPTANCE = "needs_acceptance"  # ambiguous: it may have been sent, and somebody must accept a duplicate


# By array, not by join: the ledger is not to be hashed for a page of it.
_VERDICTS = """
SELECT s.id, s.blast_id, s.batch_id, CASE
    WHEN s.status = 'sent' THEN 'sent'
    WHEN s.status IN ('scheduled', 'queued', 'sending') THEN 'waiting'
    WHEN s.status = 'cancelled'
         OR EXISTS (SELECT FROM messaging_blasts b WHERE b.id = s.blast_id AND b.state = 'cancelled') THEN 'cancelled'
    WHEN s.status = 'expired' OR s.expires_at <= clock_timestamp() THEN 'expired'
    WHEN s.status = 'ambiguous' AND NOT %(accept)s THEN 'needs_acceptance'
    ELSE 'may'
END
FROM messaging_sends s
WHERE s.id = ANY (%(ids)s::uuid[]) AND s.tenant_id = coalesce(%(tenant)s::bigint, s.tenant_id)
"""
_LOCK_BLASTS = "SELECT FROM messaging_blasts WHERE id = ANY (%(ids)s::uuid[]) ORDER BY id FOR NO KEY UPDATE"
_LOCK_BATCHES = "SELECT FROM messaging_batches WHERE id = ANY (%(ids)s::uuid[]) ORDER BY id FOR UPDATE"


def lock(ids: Sequence[UUID]) -> None:
    """The blasts and batches of these sends, in the order in which everybody locks them. Then a blast cannot be finished,
    cancelled or reopened, and no late answer of a batch be recorded, until the caller commits."""
    with ledger_cursor() as sql:
        found = sql.all(
            "SELECT blast_id, batch_id FROM messaging_sends WHERE id = ANY (%(ids)s::uuid[])", {"ids": list(ids)}
        )
        for statement, place in ((_LOCK_BLASTS, 0), (_LOCK_BATCHES, 1)):
            if wanted := {row[place] for row in found if row[place] is not None}:
                sql.run(statement, {"ids": list(wanted)})


def verdicts(ids: Sequence[UUID], tenant: int | None, *, accept: bool) -> dict[UUID, Verdict]:
    """Of each id, whether it may be redriven now."""
    with ledger_cursor() as sql:
        rows = sql.all(_VERDICTS, {"ids": list(ids), "tenant": tenant, "accept": accept})
    found = {row[0]: Verdict(row[3]) for row in rows}
    return {pk: found.get(pk, Verdict.UNKNOWN) for pk in ids}


# The batch lets go of it: a late answer finds nothing of its own, and the next claim makes a batch and a key of its own. The
# attempts begin anew; what there was before is in the dead letter and in the redrive. What `old` has locked is what is moved.
_MOVE = """
WITH old AS (
    SELECT id, tenant_id, status, batch_id, error_code FROM messaging_sends
    WHERE id = ANY (%(ids)s::uuid[]) AND (status = 'failed' OR (status = 'ambiguous' AND %(accept)s))
    ORDER BY id FOR UPDATE
), moved AS (
    UPDATE messaging_sends s
    SET status = 'queued', batch_id = NULL, provider_id = NULL, attempts = 0, error_code = NULL, error_detail = NULL
    WHERE s.id = ANY (ARRAY (SELECT id FROM old)) AND s.status IN ('failed', 'ambiguous')
    RETURNING s.id, s.blast_id, s.channel, s.rail
), letters AS (
    UPDATE core_dead_letters SET redriven = redriven + 1 WHERE send_id = ANY (ARRAY (SELECT id FROM moved))
), kept AS (
    INSERT INTO messaging_redrives (send_id, tenant_id, was, batch_id, reason, by, at)
    SELECT id, tenant_id, status, batch_id, coalesce(error_code, ''), %(by)s, clock_timestamp() FROM old
)
SELECT id, blast_id, channel, rail FROM moved
"""
_REOPEN = f"""
UPDATE messaging_blasts b
SET state = CASE b.state WHEN '{BlastState.FINISHED}' THEN '{BlastState.RUNNING}' ELSE b.state END,
    finished_at = NULL
WHERE b.id = ANY (%(blasts)s::uuid[])
"""


@dataclass(frozen=True, slots=True)
class Moved:
    """`rails`: where there is work now."""

    ids: frozenset[UUID]
    rails: frozenset[tuple[Channel, Rail]]


def move(ids: Sequence[UUID], *, accept: bool, by: str) -> Moved:
    """Make these sends due again, those that still are failed (with `accept`, or ambiguous), and reopen their blasts.

    After `lock` and `verdicts`, in one transaction with them.
    """
    with ledger_cursor() as sql:
        rows = sql.all(_MOVE, {"ids": list(ids), "accept": accept, "by": by})
        lows: dict[UUID, UUID] = {}
        for pk, blast, *_ in rows:
            if blast is not None:
                lows[blast] = min(pk, lows.get(blast, pk))
        if lows:
            sql.run(_REOPEN, {"blasts": list(lows)})
            hints.set_due(lows)
    return Moved(frozenset(row[0] for row in rows), frozenset((Channel(row[2]), Rail(row[3])) for row in rows))


# ---------------------------------------------------------------------------------------------------- which

# By the list's index of (tenant, priority, status, id), from one page to the next; a page may hold none of the blast.
OF_BLAST = f"""
SELECT s.id, s.blast_id = %(blast)s FROM messaging_sends s
WHERE s.tenant_id = %(tenant)s AND s.priority = %(priority)s AND s.status = %(status)s
  AND s.status NOT IN ('{SendStatus.QUEUED}', '{SendStatus.SENDING}') AND s.id < %(position)s
ORDER BY s.id DESC NULLS LAST LIMIT {PAGE}
"""
# A letter is kept when its send was redriven: what it failed of then is history. The status is asked for row by row, since
# a join would be free to hash the ledger.
LETTERS = f"""
SELECT d.id, d.send_id, d.reason = %(reason)s AND d.tenant_id = coalesce(%(tenant)s::bigint, d.tenant_id)
                        AND (SELECT s.status FROM messaging_sends s WHERE s.id = d.send_id) = 'failed'
FROM core_dead_letters d WHERE d.id > %(position)s AND d.id <= %(last)s ORDER BY d.id LIMIT {PAGE}
"""
AMBIGUOUS = f"""
SELECT id, send_ids FROM messaging_batches WHERE state = 'ambiguous' AND id > %(position)s ORDER BY id LIMIT {_BATCHES}
"""
_STILL_AMBIGUOUS = """
SELECT id FROM messaging_sends
WHERE id = ANY (%(ids)s::uuid[]) AND status = 'ambiguous' AND error_code = %(reason)s
  AND tenant_id = coalesce(%(tenant)s::bigint, tenant_id)
ORDER BY id
"""


def of_blast(blast: UUID, status: SendStatus) -> Iterator[list[UUID]]:
    """The blast's sends with this status (not one of those that a send passes through), newest first."""
    [(tenant, priority)] = _all("SELECT tenant_id, priority FROM messaging_blasts WHERE id = %(id)s", {"id": blast})
    where = {"blast": blast, "tenant": tenant, "priority": priority, "status": status}
    position = UUID(int=2**128 - 1)
    while rows := _all(OF_BLAST, where | {"position": position}):
        position = rows[-1][0]
        yield [pk for pk, fits in rows if fits]


def failed_because(reason: str, tenant: int | None) -> Iterator[list[UUID]]:
    """Failed sends whose dead letter has this reason, oldest letter first, up to the newest at the beginning."""
    where = {"reason": reason, "tenant": tenant, "last": _all("SELECT max(id) FROM core_dead_letters", {})[0][0]}
    position = 0
    while rows := _all(LETTERS, where | {"position": position}):
        position = rows[-1][0]
        yield [pk for _, pk, fits in rows if fits]


def ambiguous_because(reason: str, tenant: int | None) -> Iterator[list[UUID]]:
    """Sends that are ambiguous for this reason, those of the oldest batch first."""
    position = UUID(int=0)
    while rows := _all(AMBIGUOUS, {"position": position}):
        position = rows[-1][0]
        ids = [pk for _, send_ids in rows for pk in send_ids]
        yield [pk for (pk,) in _all(_STILL_AMBIGUOUS, {"ids": ids, "reason": reason, "tenant": tenant})]


def _all(statement: str, parameters: Mapping[str, Any]) -> list[Any]:
    with ledger_cursor() as sql:
        return sql.all(statement, parameters)
