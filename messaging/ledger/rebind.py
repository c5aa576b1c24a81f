"""One claim that the database has lost, written again: its batch, and its sends bound to it.

Who holds one of these sends meanwhile loses it, and must not request it under a key of his own. A batch that is being prepared
ends here: its other sends wait for the next claim, and its worker finds it gone. One that may be requested already is refused
to whoever has it in hand (`claims_log.refuse`), before this commits. No send is taken from a batch that is not locked, so none is
forgotten. The comparison that calls this has closed the gate: until it has ended, no request is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from django.db import transaction

from core.db.cursor import LedgerCursor, ledger_cursor
from messaging.ledger import claims_log, preparing
from messaging.ledger.claim import LEASE
from messaging.ledger.claims_log import Claim, Noted

#: The error code of such a batch, and of sends of which nobody can tell.
CODE = "lost_timeline"

# A batch that is being prepared there has kept its first commit; it is noted after its second, so that one was lost.
_OPEN = """
INSERT INTO messaging_batches AS b (id, provider, channel, rail, state, send_ids, digest, idempotency_key, rendered_at, attempts,
                                    error_code, error_detail, created_at)
VALUES (%(batch)s, %(provider)s, %(channel)s, %(rail)s, 'unknown', %(sends)s::uuid[], %(digest)s, %(key)s, %(rendered_at)s, 1,
        %(code)s, 'The database has lost it: a failover, or a restore to an earlier moment.', %(at)s)
ON CONFLICT (id) DO UPDATE
SET state = excluded.state, send_ids = excluded.send_ids, digest = excluded.digest, idempotency_key = excluded.idempotency_key,
    rendered_at = excluded.rendered_at, error_code = excluded.error_code, error_detail = excluded.error_detail, in_hand = NULL
WHERE b.state = 'preparing'
"""
_LEASE = """
INSERT INTO core_processed_jobs AS j (job_key, fence, lease_until, created_at)
VALUES ('batch:' || %(batch)s::text, 1, %(at)s + %(lease)s * interval '1 second', %(at)s)
ON CONFLICT (job_key) DO UPDATE SET fence = j.fence + 1, lease_until = excluded.lease_until, done_at = NULL
"""
_HOLDERS = """
SELECT DISTINCT batch_id FROM messaging_sends
WHERE id = ANY (%(mine)s::uuid[]) AND status = 'sending' AND batch_id <> %(batch)s
"""
_LOCK_HOLDERS = "SELECT FROM messaging_batches WHERE id = ANY (%(holders)s::uuid[]) ORDER BY id FOR UPDATE"
_LOCK_SENDS = "SELECT status, batch_id FROM messaging_sends WHERE id = ANY (%(mine)s::uuid[]) ORDER BY id FOR UPDATE"
_DUE = """
UPDATE messaging_sends SET status = 'queued', held_by = NULL WHERE id = ANY (%(mine)s::uuid[]) AND status = 'scheduled'
"""
_BIND = """
UPDATE messaging_sends SET status = 'sending', batch_id = %(batch)s
WHERE id = ANY (%(mine)s::uuid[]) AND status IN ('queued', 'sending')
"""
# A statement of its own, under the lock: whoever had it before may have changed both.
_HELD = """
SELECT b.id, b.state, j.fence FROM messaging_batches b JOIN core_processed_jobs j ON j.job_key = 'batch:' || b.id
WHERE b.id = ANY (%(holders)s::uuid[])
"""


def bind(claim: Claim, noted: Noted, newer: Collection[bytes]) -> bool:
    """Whether the batch is there again; not if it holds nothing that waits, or somebody else was faster. `newer`: sends that
    belong to a newer claim. Raises django.db.Error, redis.RedisError; then nothing was changed."""
    mine = [UUID(bytes=pk) for pk in claim.sends if pk not in newer]
    if not mine:
        return False
    while True:
        with transaction.atomic(), ledger_cursor() as sql:
            holders = [row[0] for row in sql.all(_HOLDERS, {"mine": mine, "batch": claim.batch})]
            prepared = preparing.lock_lanes_of([claim.batch, *holders])
            if not _open(sql, claim, noted):  # a twin waits here for the first one, and leaves
                return False
            if _lock(sql, claim.batch, mine, holders):
                bound = _take(sql, claim.batch, mine, holders, prepared)
                transaction.set_rollback(not bound)
                return bound
            transaction.set_rollback(True)  # one of them was claimed meanwhile: its batch has to be locked before it


def _open(sql: LedgerCursor, claim: Claim, noted: Noted) -> bool:
    opened = sql.run(
        _OPEN,
        {
            "batch": claim.batch,
            "at": noted.at,
            "provider": claim.provider,
            "channel": claim.channel,
            "rail": claim.rail,
            "sends": [UUID(bytes=pk) for pk in claim.sends],
            "digest": claim.digest,
            "key": claim.idempotency_key,
            "rendered_at": claim.rendered_at,
            "code": CODE,
        },
    )
    if opened:
        sql.run(_LEASE, {"batch": claim.batch, "at": noted.at, "lease": LEASE})
    return bool(opened)


def _lock(sql: LedgerCursor, batch: UUID, mine: Sequence[UUID], holders: Sequence[UUID]) -> bool:
    """Whether every batch that holds one of `mine` is locked. Batches before sends, as everywhere."""
    sql.run(_LOCK_HOLDERS, {"holders": holders})
    held = {holder for status, holder in sql.all(_LOCK_SENDS, {"mine": mine}) if status == "sending"}
    return held <= {batch, *holders}


def _take(
    sql: LedgerCursor,
    batch: UUID,
    mine: Sequence[UUID],
    holders: Sequence[UUID],
    prepared: Mapping[UUID, Sequence[UUID]],
) -> bool:
    sql.run(_DUE, {"mine": mine})
    if not sql.run(_BIND, {"mine": mine, "batch": batch}):
        return False
    # What its second commit had given back, or ended.
    preparing.let_go(batch, set(prepared.get(batch, ())).difference(mine))
    for holder, state, fence in sql.all(_HELD, {"holders": holders}):
        if state == "preparing":
            preparing.let_go(holder, prepared[holder])
            preparing.drop(holder)
        else:
            claims_log.refuse(holder, fence)
    return True
