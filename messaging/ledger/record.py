"""What came back, written down: the batch, its sends, its job and dead letters, in the caller's one transaction.

`lock_for_return` (only if sends may go back to waiting), `finish` or `keep_bound`, then one of `accept`, `give_back`,
`fail`, `leave_ambiguous`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from core.db.cursor import ledger_cursor
from core.jobs import leases
from messaging.domain.lifecycle import OPEN_BATCH, BatchState, SendStatus, sources

_OPEN_STATES = sorted(OPEN_BATCH)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a send failed, or a batch did not do what it should: a stable code, and words without addresses."""

    code: str
    detail: str = ""
    http_status: int | None = None


def job_key(batch: UUID) -> str:
    """A batch is a job (`core.jobs`); the statements of the ledger that write both write this key themselves."""
    return f"batch:{batch}"


def lock_for_return(blasts: Sequence[UUID]) -> None:
    """Hold the lanes of sends that may go back to waiting: a cancelled lane takes none back (`give_back` looks)."""
    if blasts:
        with ledger_cursor() as sql:
            sql.run(
                "SELECT FROM messaging_blasts WHERE id = ANY (%(blasts)s::uuid[]) ORDER BY id FOR KEY SHARE",
                {"blasts": list(blasts)},
            )


# The batch is locked first, in the order in which whoever takes it over locks it; a statement that had to wait for that reads
# the job as it is then. The job is asked for first, also where its answer does not matter: a statement cannot lock a batch that
# it has updated already, and would leave the job open.
_FINISH = """
WITH batch AS MATERIALIZED (SELECT id FROM messaging_batches WHERE id = %(batch)s FOR UPDATE),
job AS (
    UPDATE core_processed_jobs j SET done_at = clock_timestamp()
    FROM batch
    WHERE j.job_key = 'batch:' || batch.id AND j.fence = coalesce(%(fence)s::bigint, j.fence) AND j.done_at IS NULL
    RETURNING 1
)
UPDATE messaging_batches b
SET state = %(state)s, finished_at = clock_timestamp(),
    http_status = coalesce(%(http)s, http_status), error_code = %(code)s, error_detail = %(detail)s
WHERE b.id = %(batch)s AND b.state = ANY (%(from)s::text[]) AND (EXISTS (SELECT FROM job) OR %(fence)s::bigint IS NULL)
"""


def finish(batch: UUID, fence: int, state: BatchState, why: Failure | None = None) -> bool:
    """End the batch and its job. False: another worker has taken it over (the fence is not ours any more), and
    nothing was changed; then only an acceptance may still be recorded (`finish_accepted_late`)."""
    return _finish(batch, fence, state, why, _OPEN_STATES)


def finish_accepted_late(batch: UUID, state: BatchState) -> bool:
    """The provider's acceptance, brought by a worker that lost its lease: it is a fact, whoever brings it.

    False if the batch has an answer already that cannot be changed by it.
    """
    return _finish(batch, None, state, None, [*_OPEN_STATES, BatchState.AMBIGUOUS])


def _finish(batch: UUID, fence: int | None, state: BatchState, why: Failure | None, sources: Sequence[str]) -> bool:
    with ledger_cursor() as sql:
        return (
            sql.run(
                _FINISH,
                {
                    "batch": batch,
                    "fence": fence,
                    "state": state,
                    "http": why.http_status if why else None,
                    "code": why.code if why else None,
                    "detail": why.detail if why else None,
                    "from": list(sources),
                },
            )
            == 1
        )


def keep_bound(batch: UUID, fence: int, next_try: float, why: Failure) -> bool:
    """The answer cannot be trusted: the sends stay bound, and the lease becomes the time of the next try.

    False: another worker has taken the batch over meanwhile; nothing was changed.
    """
    with ledger_cursor() as sql:
        sql.one("SELECT FROM messaging_batches WHERE id = %(batch)s FOR UPDATE", {"batch": batch})
        if not leases.extend(job_key(batch), fence, next_try):
            return False
        sql.run(
            "UPDATE messaging_batches SET state = 'unknown', http_status = %(http)s, error_code = %(code)s,"
            " error_detail = %(detail)s, unanswered = 0 WHERE id = %(batch)s AND state = ANY (%(open)s::text[])",
            {"batch": batch, "http": why.http_status, "code": why.code, "detail": why.detail, "open": _OPEN_STATES},
        )
        return True


_ACCEPT = """
UPDATE messaging_sends s
SET status = 'sent', provider_id = a.provider_id, accepted_at = clock_timestamp(), attempts = s.attempts + 1,
    error_code = NULL, error_detail = NULL
FROM unnest(%(ids)s::uuid[], %(provider_ids)s::text[]) AS a (id, provider_id)
WHERE s.id = a.id AND s.batch_id = %(batch)s AND s.status = ANY (%(from)s::text[])
RETURNING s.id, extract(epoch FROM s.accepted_at - s.created_at)
"""


def accept(batch: UUID, provider_ids: Mapping[UUID, str]) -> dict[UUID, float]:
    """These sends were taken by the provider. Returns the seconds from submit to acceptance of each that changed."""
    with ledger_cursor() as sql:
        rows = sql.all(
            _ACCEPT,
            {
                "batch": batch,
                "ids": list(provider_ids),
                "provider_ids": list(provider_ids.values()),
                "from": sources(SendStatus.SENT),
            },
        )
    return {pk: float(seconds) for pk, seconds in rows}


def unless_over(status: str) -> str:
    """SQL for the send `s`: `status`, an expression, unless it waits no more. A lane that was cancelled takes nothing back, and
    what has run out ends."""
    return f"""CASE
        WHEN EXISTS (SELECT FROM messaging_blasts b WHERE b.id = s.blast_id AND b.state = 'cancelled') THEN 'cancelled'
        WHEN s.expires_at <= clock_timestamp() THEN 'expired'
        ELSE {status}
    END"""


# `delays` is null for sends that are due at once.
_GIVE_BACK = f"""
UPDATE messaging_sends s
SET status = {unless_over("CASE WHEN a.delay IS NULL THEN 'queued' ELSE 'scheduled' END")},
    not_before = CASE WHEN a.delay IS NULL THEN s.not_before ELSE clock_timestamp() + a.delay * interval '1 second' END,
    attempts = s.attempts + CASE WHEN %(counted)s THEN 1 ELSE 0 END,
    error_code = %(code)s, error_detail = %(detail)s
FROM unnest(%(ids)s::uuid[], %(delays)s::float8[]) AS a (id, delay)
WHERE s.id = a.id AND s.batch_id = %(batch)s AND s.status = 'sending'
"""


def give_back(batch: UUID, delays: Mapping[UUID, float | None], *, counted: bool, why: Failure) -> None:
    """These sends go back to waiting: due at once (None) or after their delay in seconds. `counted`: it was an attempt."""
    if delays:
        with ledger_cursor() as sql:
            sql.run(
                _GIVE_BACK,
                {
                    "batch": batch,
                    "ids": list(delays),
                    "delays": list(delays.values()),
                    "counted": counted,
                    "code": why.code,
                    "detail": why.detail,
                },
            )


_FAIL = """
WITH failed AS (
    UPDATE messaging_sends s
    SET status = 'failed', attempts = s.attempts + CASE WHEN %(counted)s THEN 1 ELSE 0 END,
        error_code = a.code, error_detail = a.detail
    FROM unnest(%(ids)s::uuid[], %(codes)s::text[], %(details)s::text[]) AS a (id, code, detail)
    WHERE s.id = a.id AND s.batch_id = %(batch)s AND s.status IN ('sending', 'ambiguous')
    RETURNING s.id, s.channel, s.tenant_id, a.code, a.detail
)
INSERT INTO core_dead_letters (channel, send_id, tenant_id, batch_id, reason, detail, redriven, created_at)
SELECT channel, id, tenant_id, %(batch)s, code, detail, 0, clock_timestamp() FROM failed
ON CONFLICT (send_id) DO UPDATE
SET batch_id = excluded.batch_id, reason = excluded.reason, detail = excluded.detail, created_at = excluded.created_at
"""


def fail(batch: UUID, failures: Mapping[UUID, Failure], *, counted: bool = True) -> None:
    """These sends failed for good: `failed`, each with its dead letter."""
    if failures:
        with ledger_cursor() as sql:
            sql.run(
                _FAIL,
                {
                    "batch": batch,
                    "ids": list(failures),
                    "codes": [f.code for f in failures.values()],
                    "details": [f.detail for f in failures.values()],
                    "counted": counted,
                },
            )


def leave_ambiguous(batch: UUID, why: Failure) -> None:
    """Nobody can tell what became of the sends of this batch: unresolved, and never sent again without a decision."""
    with ledger_cursor() as sql:
        sql.run(
            "UPDATE messaging_sends s SET status = 'ambiguous', error_code = %(code)s, error_detail = %(detail)s"
            " WHERE s.id = ANY (ARRAY (SELECT unnest(send_ids) FROM messaging_batches WHERE id = %(batch)s))"
            " AND s.batch_id = %(batch)s AND s.status = 'sending'",
            {"batch": batch, "code": why.code, "detail": why.detail},
        )
