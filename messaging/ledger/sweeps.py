"""What a beat of the clock does to the ledger. Each function is one step and returns how many rows it moved."""

from __future__ import annotations

import logging
from uuid import UUID

from django.conf import settings
from django.db import transaction

from core.db.cursor import ledger_cursor
from messaging.domain.lifecycle import BlastState
from messaging.domain.rails import PRIORITY_OF
from messaging.ledger import hints, preparing
from messaging.ledger.due import BLAST_HELD, NOW, QUEUED_OF_BLAST, active, may_go_alone
from messaging.ledger.record import unless_over

log = logging.getLogger(__name__)

#: Sends that one step moves at most: a beat stays short, and holds its row locks for milliseconds.
LIMIT = 5_000
#: Days for which a finished job is remembered.
KEEP_DAYS = 7


def _run(sql: str, **parameters: object) -> int:
    with transaction.atomic(), ledger_cursor() as cursor:
        return cursor.run(sql, {"limit": LIMIT, "days": KEEP_DAYS, **parameters})


def wake() -> int:
    """Scheduled sends whose time has come are due, unless their blast was cancelled or they have run out. Each priority on
    its own: a blast of a million that is due at nine keeps no login code waiting."""
    return sum(_run(_WAKE, priority=priority) for priority in sorted(PRIORITY_OF.values()))


_WAKE = f"""
UPDATE messaging_sends s
SET status = {unless_over("'queued'")}, held_by = NULL
WHERE s.status = 'scheduled' AND s.id = ANY (ARRAY (
    SELECT id FROM messaging_sends
    WHERE status = 'scheduled' AND priority = %(priority)s AND not_before <= {NOW}
    ORDER BY not_before LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
"""


def release_unprepared() -> int:
    """Batches whose worker died before they could be requested: their sends wait for the next claim, or end."""
    released = preparing.release()
    if released.batches:
        log.warning("batches_released", extra={"batches": released.batches})
    for send in released.killers:
        log.error("send_kills_worker", extra={"send": send})
    return released.batches


#: Single sends of one held domain that a beat wakes: what leaves in a second is not much more.
_HELD = 1_000


def wake_held() -> int:
    """Single sends that wait for their sender domain are due when it is held no more; when a hold has ended, one of them, to try.

    From facts, whoever lifted the hold and however: nothing is lost with the process that did. Found by index, hold by hold.
    """
    return _run(_WAKE_HELD, few=_HELD)


_WAKE_HELD = f"""
WITH RECURSIVE waiting (hold) AS (
    (SELECT held_by FROM messaging_sends WHERE status = 'scheduled' AND held_by IS NOT NULL ORDER BY held_by LIMIT 1)
    UNION ALL
    SELECT (SELECT held_by FROM messaging_sends WHERE status = 'scheduled' AND held_by > w.hold ORDER BY held_by LIMIT 1)
    FROM waiting w WHERE w.hold IS NOT NULL
),
free AS MATERIALIZED (
    SELECT w.hold, CASE WHEN h.hold_code <> '' THEN 1 ELSE %(few)s END AS few
    FROM waiting w LEFT JOIN messaging_sender_holds h ON h.id = w.hold
    WHERE w.hold IS NOT NULL AND (h.id IS NULL OR h.hold_code = '' OR h.held_until <= clock_timestamp())
)
UPDATE messaging_sends s
SET status = CASE WHEN s.expires_at <= clock_timestamp() THEN 'expired' ELSE 'queued' END, held_by = NULL
WHERE s.status = 'scheduled' AND s.id = ANY (ARRAY (
    SELECT p.id FROM free f CROSS JOIN LATERAL (
        SELECT s.id FROM messaging_sends s
        WHERE s.status = 'scheduled' AND s.held_by = f.hold AND (f.few > 1 OR {may_go_alone()})
        ORDER BY s.priority, s.id LIMIT f.few FOR UPDATE SKIP LOCKED
    ) p LIMIT %(limit)s
))
"""


def prune_holds() -> int:
    """What was learned of sender domains that nobody has sent for in a day."""
    return _run(
        """
        DELETE FROM messaging_sender_holds WHERE id = ANY (ARRAY (
            SELECT id FROM messaging_sender_holds
            WHERE coalesce(held_until, written_at) < clock_timestamp() - interval '1 day'
            ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ))
        """
    )


def expire() -> int:
    """Waiting sends that have run out end."""
    return _run(_EXPIRE)


_EXPIRE = f"""
UPDATE messaging_sends SET status = 'expired'
WHERE status IN ('scheduled', 'queued') AND id = ANY (ARRAY (
    SELECT id FROM messaging_sends
    WHERE status IN ('scheduled', 'queued') AND expires_at IS NOT NULL AND expires_at <= {NOW}
    ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
"""


def clear_cancelled() -> int:
    """Waiting sends of cancelled blasts are cancelled. What is bound to a batch follows when its answer is recorded."""
    return sum(_run(_CLEAR % {"status": status}) for status in ("queued", "scheduled"))


_CLEAR = """
UPDATE messaging_sends SET status = 'cancelled'
WHERE status = '%(status)s' AND id = ANY (ARRAY (
    SELECT s.id
    FROM messaging_blasts b CROSS JOIN LATERAL (
        SELECT s.id FROM messaging_sends s WHERE s.blast_id = b.id AND s.status = '%(status)s'
        ORDER BY s.id LIMIT %%(limit)s FOR UPDATE SKIP LOCKED
    ) s
    WHERE b.finished_at IS NULL AND b.state = 'cancelled' LIMIT %%(limit)s
))
"""

#: Running blasts that one beat looks at; the next beat goes on behind them.
_BLASTS = 2_000
#: Beats within which a `low` follows what was sent, each blast in its turn: under an open snapshot every version of a hint is
#: walked over by all who read it, and a claim that begins two seconds early only walks over what was sent in these.
TURNS = 4

# A send that went back to waiting lies below `low`, perhaps, and has left a mark.
_MARKS = "SELECT id, blast_id, low FROM messaging_blast_marks ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED"
_LOCK_HINTS = """
SELECT blast_id FROM messaging_blast_hints WHERE blast_id = ANY (%(ids)s::uuid[]) ORDER BY 1 FOR UPDATE SKIP LOCKED
"""
_LOWER = """
UPDATE messaging_blast_hints h SET low = w.low FROM unnest(%(ids)s::uuid[], %(lows)s::uuid[]) AS w (id, low)
WHERE h.blast_id = w.id AND h.blast_id = ANY (%(ids)s::uuid[]) AND h.low > w.low
"""
_HINTED = "SELECT blast_id FROM messaging_blast_hints WHERE blast_id = ANY (%(ids)s::uuid[])"
_FORGET_MARKS = "DELETE FROM messaging_blast_marks WHERE id = ANY (%(marks)s::bigint[])"

# From `low` on: what lies before it was sent, and under an old snapshot all of that would still be walked over. Only a blast that
# seems to have run empty is looked through from its beginning, once.
FACTS = f"""
SELECT b.id, h.has_due, h.low, coalesce(
           (SELECT s.id {QUEUED_OF_BLAST} ORDER BY s.id LIMIT 1),
           CASE WHEN h.has_due IS NOT FALSE THEN (
               SELECT s.id FROM messaging_sends s WHERE s.blast_id = b.id AND s.status = 'queued' ORDER BY s.id LIMIT 1
           ) END
       ),
       {active("b.tenant_id")} AND NOT {BLAST_HELD}
FROM messaging_blasts b LEFT JOIN LATERAL (SELECT * FROM messaging_blast_hints h WHERE h.blast_id = b.id LIMIT 1) h ON true
WHERE b.finished_at IS NULL AND b.state = 'running' AND b.id > %(after)s
ORDER BY b.id LIMIT %(limit)s
"""
# Not where somebody has lowered it meanwhile.
HINTS = """
UPDATE messaging_blast_hints h SET has_due = w.has_due, low = coalesce(w.low, h.low)
FROM unnest(%(ids)s::uuid[], %(was)s::uuid[], %(lows)s::uuid[], %(due)s::boolean[]) AS w (id, was, low, has_due)
WHERE h.blast_id = w.id AND h.blast_id = ANY (%(ids)s::uuid[]) AND h.low IS NOT DISTINCT FROM w.was
"""
# Of a running blast that has none yet. Whoever is pausing one at this moment deletes what he finds, and this must come before it.
_ADD_HINTS = """
INSERT INTO messaging_blast_hints (blast_id, channel, rail, priority, tenant_id, has_due)
SELECT b.id, b.channel, b.rail, b.priority, b.tenant_id, false FROM messaging_blasts b
WHERE b.id = ANY (%(ids)s::uuid[]) AND b.state = 'running' AND b.finished_at IS NULL
ORDER BY b.id FOR NO KEY UPDATE SKIP LOCKED
ON CONFLICT (blast_id) DO NOTHING
"""


class _Place:
    """Where `refresh_hints` goes on, and whose turn it is."""

    after = UUID(int=0)
    turn = 0


def refresh_hints() -> int:
    """Write the hints of running blasts from facts, where they are wrong: `has_due` at once, `low` within `TURNS` beats.

    Nobody is waited for: a hint that somebody is writing at this moment has its turn with the next beat. No blast is written,
    and so claims, which hold one FOR KEY SHARE, keep nobody out.
    """
    _lower_hints()
    with ledger_cursor() as cursor:
        facts = cursor.all(FACTS, {"after": _Place.after, "limit": _BLASTS})
    _Place.after = facts[-1][0] if len(facts) == _BLASTS else UUID(int=0)
    _Place.turn = (_Place.turn + 1) % TURNS
    wrong: dict[UUID, tuple[UUID | None, UUID | None, bool]] = {}
    for blast, has_due, low, first, may_go in facts:
        due = first is not None and may_go
        behind = first is not None and first != low and (low is None or blast.int % TURNS == _Place.turn)
        if has_due is not due or behind:
            wrong[blast] = low, first, due
    if not wrong:
        return 0
    missing = [blast for blast, has_due, *_ in facts if has_due is None]
    with transaction.atomic(), ledger_cursor() as cursor:
        if missing:
            cursor.run(_ADD_HINTS, {"ids": missing})
        free = [row[0] for row in cursor.all(_LOCK_HINTS, {"ids": list(wrong)})]
        if not free:
            return 0
        was, lows, due = ([wrong[pk][i] for pk in free] for i in range(3))
        return cursor.run(HINTS, {"ids": free, "was": was, "lows": lows, "due": due})


def _lower_hints() -> None:
    """As low as the marks say. Those whose blast has no hint say nothing: whoever resumes it looks himself."""
    with transaction.atomic(), ledger_cursor() as cursor:
        marks = cursor.all(_MARKS, {"limit": LIMIT})
        if not marks:
            return
        lows: dict[UUID, UUID] = {}
        for _, blast, low in marks:
            lows[blast] = min(low, lows.get(blast, low))
        hinted = {row[0] for row in cursor.all(_HINTED, {"ids": list(lows)})}
        free = {row[0] for row in cursor.all(_LOCK_HINTS, {"ids": list(lows)})}
        cursor.run(_LOWER, {"ids": list(free), "lows": [lows[blast] for blast in free]})
        cursor.run(_FORGET_MARKS, {"marks": [pk for pk, blast, _ in marks if blast in free or blast not in hinted]})


# Scalars, blast by blast: an anti-join would be free to merge the blasts with all sends that are due. The hint is asked first,
# since whoever looks through the sends of one walks over all that an open snapshot keeps.
_RUN_OUT = """
b.finished_at IS NULL AND b.state IN ('running', 'cancelled')
AND CASE WHEN (SELECT h.has_due FROM messaging_blast_hints h WHERE h.blast_id = b.id) THEN false ELSE
    (SELECT s.id FROM messaging_sends s WHERE s.blast_id = b.id AND s.status = 'scheduled' ORDER BY s.id LIMIT 1) IS NULL
    AND (SELECT s.id FROM messaging_sends s WHERE s.blast_id = b.id AND s.status = 'queued' ORDER BY s.id LIMIT 1) IS NULL
END
AND NOT EXISTS (
    SELECT FROM messaging_batches o JOIN messaging_sends s ON s.id = ANY (o.send_ids)
    WHERE o.state IN ('claimed', 'preparing', 'unknown') AND s.blast_id = b.id AND s.status = 'sending'
)
"""
_LOCK_RUN_OUT = f"""
SELECT b.id FROM messaging_blasts b WHERE {_RUN_OUT} ORDER BY b.id LIMIT %(limit)s FOR NO KEY UPDATE OF b SKIP LOCKED
"""
_FINISH = f"""
UPDATE messaging_blasts b
SET finished_at = clock_timestamp(),
    state = CASE b.state WHEN '{BlastState.RUNNING}' THEN '{BlastState.FINISHED}' ELSE b.state END
WHERE b.id = ANY (%(ids)s::uuid[]) AND {_RUN_OUT}
"""


def finish_blasts() -> int:
    """Running blasts without an open send are finished; cancelled ones are cleared.

    A send that leaves the open states does not come back into them, but by a redrive, which locks the blast. One may commit
    between the snapshot of the first statement and its lock: the second one, under the lock, sees it and decides.
    """
    with transaction.atomic(), ledger_cursor() as cursor:
        found = [row[0] for row in cursor.all(_LOCK_RUN_OUT, {"limit": LIMIT})]
        finished = cursor.run(_FINISH, {"ids": found}) if found else 0
        hints.forget(found)
    return finished


DRAFT_EXPIRED = "draft_expired"
EXPIRE_DRAFTS = f"""
UPDATE messaging_blasts SET state = '{BlastState.CANCELLED}', reason = '{DRAFT_EXPIRED}'
WHERE state = '{BlastState.PLANNING}' AND id = ANY (ARRAY (
    SELECT b.id FROM messaging_blasts b
    WHERE b.state = '{BlastState.PLANNING}' AND b.created_at < {NOW} - %(days)s * interval '1 day'
      AND coalesce((
          SELECT max(greatest(u.created_at, u.finished_at, u.lease_until)) FROM messaging_blast_uploads u WHERE u.blast_id = b.id
      ), b.created_at) < {NOW} - %(days)s * interval '1 day'
    ORDER BY b.created_at LIMIT %(limit)s FOR UPDATE OF b SKIP LOCKED
))
"""


def expire_drafts() -> int:
    """Blasts that nobody has launched, nor added recipients to, for `MESSAGING_DRAFT_DAYS` days are cancelled."""
    given_up = _run(EXPIRE_DRAFTS, days=settings.MESSAGING_DRAFT_DAYS)
    if given_up:
        log.info("drafts_expired", extra={"blasts": given_up})
    return given_up


def prune() -> int:
    """Finished jobs that nobody asks for any more."""
    return _run(_PRUNE_JOBS)


_PRUNE_JOBS = f"""
DELETE FROM core_processed_jobs WHERE job_key = ANY (ARRAY (
    SELECT job_key FROM core_processed_jobs WHERE done_at < {NOW} - %(days)s * interval '1 day'
    ORDER BY done_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
"""
