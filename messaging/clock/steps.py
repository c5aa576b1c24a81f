"""What a beat of the clock does to the ledger. Each function is one step and returns how many rows it moved."""

from __future__ import annotations

import logging
from uuid import UUID

from django.db import transaction

from core.db import ledger_cursor
from messaging.ledger import preparing
from messaging.lifecycle import BlastState
from messaging.rails import PRIORITY_OF

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


_WAKE = """
UPDATE messaging_sends s
SET status = CASE
    WHEN EXISTS (SELECT FROM messaging_blasts b WHERE b.id = s.blast_id AND b.state = 'cancelled') THEN 'cancelled'
    WHEN s.expires_at <= clock_timestamp() THEN 'expired'
    ELSE 'queued'
END, held_by = NULL
WHERE s.status = 'scheduled' AND s.id = ANY (ARRAY (
    SELECT id FROM messaging_sends
    WHERE status = 'scheduled' AND priority = %(priority)s AND not_before <= clock_timestamp()
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


_WAKE_HELD = """
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
        SELECT s.id FROM messaging_sends s WHERE s.status = 'scheduled' AND s.held_by = f.hold
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
    return _run(
        """
        UPDATE messaging_sends SET status = 'expired'
        WHERE status IN ('scheduled', 'queued') AND id = ANY (ARRAY (
            SELECT id FROM messaging_sends
            WHERE status IN ('scheduled', 'queued') AND expires_at IS NOT NULL AND expires_at <= clock_timestamp()
            ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ))
        """
    )


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

# `low` is read without its old value as a bound: a send that went back to waiting may lie below it.
_FACTS = """
SELECT b.id, b.has_due, b.low,
       (SELECT s.id FROM messaging_sends s WHERE s.blast_id = b.id AND s.status = 'queued' ORDER BY s.id LIMIT 1)
FROM messaging_blasts b
WHERE b.finished_at IS NULL AND b.state = 'running' AND b.id > %(after)s
ORDER BY b.id LIMIT %(limit)s
"""
_HINTS = """
UPDATE messaging_blasts b SET has_due = h.low IS NOT NULL, low = coalesce(h.low, b.low)
FROM unnest(%(ids)s::uuid[], %(lows)s::uuid[]) AS h (id, low) WHERE b.id = h.id
"""
_LOCK_BLASTS = (
    "SELECT id FROM messaging_blasts WHERE id = ANY (%(ids)s::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"
)


class _Place:
    """Where `refresh_hints` goes on."""

    after = UUID(int=0)


def refresh_hints() -> int:
    """Write `has_due` and `low` of running blasts from facts, where they are wrong.

    Nobody is waited for: a blast that somebody is pausing, cancelling or holding at this moment has its turn with the next beat.
    Claims keep nobody out (they hold a blast FOR KEY SHARE).
    """
    with ledger_cursor() as cursor:
        facts = cursor.all(_FACTS, {"after": _Place.after, "limit": _BLASTS})
    _Place.after = facts[-1][0] if len(facts) == _BLASTS else UUID(int=0)
    wrong = {
        blast: first
        for blast, has_due, low, first in facts
        if has_due is not (first is not None) or (first is not None and first != low)
    }
    if not wrong:
        return 0
    with transaction.atomic(), ledger_cursor() as cursor:
        free = [row[0] for row in cursor.all(_LOCK_BLASTS, {"ids": list(wrong)})]
        return cursor.run(_HINTS, {"ids": free, "lows": [wrong[pk] for pk in free]})


_RUN_OUT = """
b.finished_at IS NULL AND b.state IN ('running', 'cancelled')
AND NOT EXISTS (SELECT FROM messaging_sends s WHERE s.blast_id = b.id AND s.status = 'queued')
AND NOT EXISTS (SELECT FROM messaging_sends s WHERE s.blast_id = b.id AND s.status = 'scheduled')
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
        return cursor.run(_FINISH, {"ids": found}) if found else 0


def prune() -> int:
    """Finished jobs that nobody asks for any more."""
    return _run(
        """
        DELETE FROM core_processed_jobs WHERE job_key = ANY (ARRAY (
            SELECT job_key FROM core_processed_jobs WHERE done_at < clock_timestamp() - %(days)s * interval '1 day'
            ORDER BY done_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
        ))
        """
    )
