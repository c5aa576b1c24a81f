"""Taking up a batch whose lease has run out: its worker vanished, or its answer was unknown and the next try is due."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from core.db.cursor import ledger_cursor
from core.jobs import leases
from messaging.domain.lifecycle import BatchState
from messaging.ledger.claim import LEASE, BoundSend
from messaging.ledger.claims_log import SERVER
from messaging.ledger.record import job_key

#: A provider forgets idempotency keys after 24 h (Resend); a repeat later than this could be a double.
REPLAY_HOURS = 23
#: Attempts in a row without a recorded answer after which a batch is not repeated: it ends the workers that take it up.
LAST_UNANSWERED = 3


@dataclass(frozen=True, slots=True)
class Recovered:
    """A batch taken over under a new fence. `too_late`: it must not be repeated any more."""

    id: UUID
    fence: int
    attempts: int  # the coming one included
    digest: bytes
    idempotency_key: str
    rendered_at: datetime
    last_error: str
    sends: list[BoundSend]  # in the order of the request
    too_late: bool
    age: float  # seconds since it was claimed
    server: str  # `claims_log`
    unanswered: int = 0  # attempts in a row whose worker vanished


# Whoever holds it locked records its answer, or stands still in that and is ended by the server: nobody waits for that.
_LOCK = "SELECT FROM messaging_batches WHERE id = %(batch)s FOR UPDATE SKIP LOCKED"
_MARK = f"""
UPDATE messaging_batches b SET state = 'unknown', attempts = b.attempts + 1, unanswered = b.unanswered + 1
WHERE id = %(batch)s AND state IN ('claimed', 'unknown')
RETURNING attempts, digest, idempotency_key, rendered_at, coalesce(error_code, ''), send_ids,
          clock_timestamp() > created_at + %(hours)s * interval '1 hour',
          extract(epoch FROM clock_timestamp() - created_at)::float8, unanswered - 1, {SERVER}
"""
_BOUND = """
SELECT s.id, s.tenant_id, s.blast_id, s.content_id, s.priority, s.sealed, s.expires_at, s.attempts
FROM messaging_sends s
WHERE s.id = ANY (%(ids)s::uuid[]) AND s.batch_id = %(batch)s AND s.status = 'sending'
"""


def take_over(batch: UUID) -> Recovered | None:
    """Take the batch over, in the caller's transaction. None: somebody else did, is at it, or it has ended.

    From here on the batch is `unknown`: whether its first worker sent anything cannot be told. It is repeated to the end of its
    key's life, whatever of it expires meanwhile: a late code is better than unresolved strangers.
    """
    with ledger_cursor() as sql:
        if sql.one(_LOCK, {"batch": batch}) is None:
            return None
        fence = leases.begin(job_key(batch), LEASE)
        if fence is None:
            return None
        row = sql.one(_MARK, {"batch": batch, "hours": REPLAY_HOURS})
        if row is None:
            raise AssertionError(f"Bug: batch {batch} has ended, but its job is open ({BatchState.UNKNOWN} expected)")
        attempts, digest, key, rendered_at, last_error, ids, too_late, age, unanswered, server = row
        rows = sql.all(_BOUND, {"ids": ids, "batch": batch})
    by_id = {r[0]: BoundSend(r[0], r[1], r[2], r[3], r[4], bytes(r[5]), r[6], r[7]) for r in rows}
    return Recovered(
        id=batch,
        fence=fence,
        attempts=attempts,
        digest=bytes(digest),
        idempotency_key=key,
        rendered_at=rendered_at,
        last_error=last_error,
        sends=[by_id[pk] for pk in ids if pk in by_id],
        too_late=too_late,
        age=age,
        unanswered=unanswered,
        server=server,
    )
