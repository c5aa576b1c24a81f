"""Between the two commits of a claim: the batch is being prepared, and no request of it has left.

Its sends are bound, and what a tenant has made (variables, templates) is looked into for the first time. A worker that dies of
that leaves the batch behind: the clock releases it when its short lease has run out (`release`), and remembers at each send
that it was in hand (`Send.mishaps`). Sends with a mishap are prepared apart from all others, one after the other with a note of
which is in hand; so the second death names one, which goes alone from then on, and the third is its end. Whoever is only
slow, frozen or cut off lives to say so (`acquit`).

Locks: batch, sends. One writer at a time: the fence in the batch's job is compared under the batch's lock. No lane is locked:
what goes back to one that is being cancelled at this moment is cleared with the next beat of the clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from core.db.cursor import ledger_cursor
from messaging.ledger import claims_log, record
from messaging.ledger.claim import LEASE, PREPARING_LEASE
from messaging.ledger.claims_log import SERVER
from messaging.ledger.record import Failure, unless_over

#: Mishaps after which a send is a dead letter.
LAST_MISHAP = 3
#: Batches that one call of `release` looks at.
_RELEASES = 100

_OURS = """
batch AS MATERIALIZED (
    SELECT id FROM messaging_batches WHERE id = %(batch)s AND state = 'preparing' FOR UPDATE
),
job AS (
    UPDATE core_processed_jobs j SET lease_until = clock_timestamp() + %(lease)s * interval '1 second'
    FROM batch WHERE j.job_key = 'batch:' || batch.id AND j.fence = 1 AND j.done_at IS NULL
    RETURNING 1
)
"""
_MARK = f"""
WITH {_OURS}
UPDATE messaging_batches SET in_hand = %(send)s
WHERE id = %(batch)s AND EXISTS (SELECT FROM job)
RETURNING set_config('synchronous_commit', 'off', true)
"""
_READY = f"""
WITH {_OURS}
UPDATE messaging_batches SET state = 'claimed', digest = %(digest)s, send_ids = %(sends)s::uuid[], in_hand = NULL, unanswered = 1
WHERE id = %(batch)s AND EXISTS (SELECT FROM job) AND cardinality(%(sends)s::uuid[]) = (
    SELECT count(*) FROM messaging_sends
    WHERE id = ANY (%(sends)s::uuid[]) AND batch_id = %(batch)s AND status = 'sending'
)
RETURNING {SERVER}
"""
_HOLD = f"WITH {_OURS} SELECT {SERVER} FROM job"


def mark(batch: UUID, send: UUID | None) -> bool:
    """The lease begins anew, and is noted which send is in hand (None: no single one). Outside any transaction. False: fenced
    out."""
    with ledger_cursor() as sql:
        return sql.run(_MARK, {"batch": batch, "send": send, "lease": PREPARING_LEASE}) == 1


def make_ready(batch: UUID, sends: Sequence[UUID], digest: bytes) -> str | None:
    """The batch holds these sends in this order and may be requested, for `LEASE` seconds from now. Returns the server
    (`claims_log`); None: fenced out, or one of them is bound to it no more."""
    with ledger_cursor() as sql:
        row = sql.one(_READY, {"batch": batch, "sends": list(sends), "digest": digest, "lease": LEASE})
    return row[0] if row else None


def hold(batch: UUID) -> str | None:
    """Lock the batch for what else is written with it. Returns as `make_ready`."""
    with ledger_cursor() as sql:
        row = sql.one(_HOLD, {"batch": batch, "lease": PREPARING_LEASE})
    return row[0] if row else None


def drop(batch: UUID) -> None:
    """Nothing was left to request: the batch never was. In the transaction that gave its sends back."""
    with ledger_cursor() as sql:
        sql.run("DELETE FROM messaging_batches WHERE id = %(batch)s AND state = 'preparing'", {"batch": batch})
        sql.run("DELETE FROM core_processed_jobs WHERE job_key = 'batch:' || %(batch)s::text", {"batch": batch})


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a send is set aside, and for how many seconds. `mishap`: it counts towards `LAST_MISHAP`; else it is held."""

    why: Failure
    seconds: float
    mishap: bool


_SET_ASIDE = f"""
UPDATE messaging_sends s
SET status = {unless_over("'scheduled'")},
    not_before = clock_timestamp() + a.seconds * interval '1 second',
    mishaps = s.mishaps + CASE WHEN a.mishap THEN 1 ELSE 0 END,
    held_since = CASE WHEN a.mishap THEN s.held_since ELSE coalesce(s.held_since, clock_timestamp()) END,
    error_code = a.code, error_detail = a.detail
FROM unnest(%(ids)s::uuid[], %(seconds)s::float8[], %(mishaps)s::boolean[], %(codes)s::text[], %(details)s::text[])
     AS a (id, seconds, mishap, code, detail)
WHERE s.id = a.id AND s.batch_id = %(batch)s AND s.status = 'sending'
"""


def set_aside(batch: UUID, waits: Mapping[UUID, Wait]) -> None:
    """These sends wait, each on its own; nobody's fault but theirs. After `make_ready` or `hold`."""
    if waits:
        with ledger_cursor() as sql:
            sql.run(
                _SET_ASIDE,
                {
                    "batch": batch,
                    "ids": list(waits),
                    "seconds": [w.seconds for w in waits.values()],
                    "mishaps": [w.mishap for w in waits.values()],
                    "codes": [w.why.code for w in waits.values()],
                    "details": [w.why.detail for w in waits.values()],
                },
            )


def acquit(sends: Collection[UUID]) -> None:
    """A worker lives that had these in hand: what was held against them was not theirs."""
    with ledger_cursor() as sql:
        sql.run(
            "UPDATE messaging_sends SET mishaps = 0 WHERE id = ANY (%(ids)s::uuid[]) AND mishaps > 0"
            " AND status IN ('scheduled', 'queued', 'sending')",
            {"ids": list(sends)},
        )


# ---------------------------------------------------------------------------------------------------- after a death

_LAPSED = """
SELECT b.id FROM messaging_batches b JOIN core_processed_jobs j ON j.job_key = 'batch:' || b.id
WHERE b.state = 'preparing' AND j.done_at IS NULL AND j.lease_until <= clock_timestamp()
ORDER BY b.id LIMIT %(limit)s
"""
_SENDS_OF = "SELECT id, send_ids FROM messaging_batches WHERE id = ANY (%(batches)s::uuid[]) AND state = 'preparing'"
_BLASTS_OF = """
SELECT DISTINCT blast_id FROM messaging_sends WHERE id = ANY (%(sends)s::uuid[]) AND blast_id IS NOT NULL
"""
# Whoever has the batch locked is at work on it, or stands still and is ended by the server: another time.
_TAKE = f"""
SELECT b.send_ids, b.in_hand, {SERVER} FROM messaging_batches b JOIN core_processed_jobs j ON j.job_key = 'batch:' || b.id
WHERE b.id = %(batch)s AND b.state = 'preparing' AND j.done_at IS NULL AND j.lease_until <= clock_timestamp()
FOR UPDATE OF b, j SKIP LOCKED
"""
_RELEASE = f"""
UPDATE messaging_sends s
SET status = {unless_over("'queued'")},
    mishaps = s.mishaps + CASE WHEN s.id = coalesce(%(in_hand)s::uuid, s.id) THEN %(mishap)s ELSE 0 END
WHERE s.id = ANY (%(ids)s::uuid[]) AND s.batch_id = %(batch)s AND s.status = 'sending'
  AND s.mishaps + CASE WHEN s.id = coalesce(%(in_hand)s::uuid, s.id) THEN %(mishap)s ELSE 0 END < %(last)s
"""
_KILLERS = """
SELECT id FROM messaging_sends
WHERE id = ANY (%(ids)s::uuid[]) AND batch_id = %(batch)s AND status = 'sending'
"""
KILLS_WORKER = Failure("kills_worker", "Preparing it ended a worker three times. It will not be tried again by itself.")


@dataclass(frozen=True, slots=True)
class Released:
    """What was released: batches, and the sends that will not be tried again."""

    batches: int
    killers: tuple[UUID, ...]


def lock_lanes_of(batches: Sequence[UUID]) -> dict[UUID, list[UUID]]:
    """Hold the lanes to which these batches may return their sends, before one is locked. Returns the sends of those that
    are being prepared."""
    with ledger_cursor() as sql:
        sends: dict[UUID, list[UUID]] = dict(sql.all(_SENDS_OF, {"batches": list(batches)}))
        everything = [send for ids in sends.values() for send in ids]
        record.lock_for_return([row[0] for row in sql.all(_BLASTS_OF, {"sends": everything})])
    return sends


def let_go(batch: UUID, sends: Collection[UUID]) -> None:
    """These sends wait for the next claim, and it was nobody's fault. After `lock_lanes_of`; the caller has the batch locked."""
    with ledger_cursor() as sql:
        sql.run(_RELEASE, {"batch": batch, "ids": list(sends), "in_hand": None, "mishap": 0, "last": LAST_MISHAP})


def release() -> Released:
    """Release batches whose worker died while it prepared them: their sends wait for the next claim, or end.

    None while the ledger's server has not been compared (`lost_claims`): there it may be the second commit that is missing, and
    a request of the batch have left. Raises redis.RedisError.
    """
    with ledger_cursor() as sql:
        lapsed = [row[0] for row in sql.all(_LAPSED, {"limit": _RELEASES})]
    batches, killers = 0, list[UUID]()
    for batch in lapsed:
        with transaction.atomic():
            found = _release(batch)
        if found is not None:
            batches += 1
            killers += found
    return Released(batches, tuple(killers))


def _release(batch: UUID) -> list[UUID] | None:
    with ledger_cursor() as sql:
        row = sql.one(_TAKE, {"batch": batch})
        # Asked under the lock: a comparison that ended before has found it as it is now.
        if row is None or not claims_log.is_known(row[2]):
            return None
        parameters = {"batch": batch, "ids": row[0], "in_hand": row[1], "mishap": 1, "last": LAST_MISHAP}
        sql.run(_RELEASE, parameters)
        killers = [killer[0] for killer in sql.all(_KILLERS, parameters)]
        record.fail(batch, dict.fromkeys(killers, KILLS_WORKER))
    drop(batch)
    return killers
