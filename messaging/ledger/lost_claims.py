"""Claims that the database has lost (`claims_log` has them): bound and marked again before anything else is sent.

The batch is written as it was, under its key: a provider that knows the key repeats what it answered then; one that can be
asked is asked; with any other its sends are ambiguous. Nothing of it leaves under a new key. A send belongs to the newest claim
that holds it: an older one of the same send had ended, without an acceptance of it, or there would be no newer one. A batch
from which a send was taken in this way cannot be rebuilt: what is left in it becomes ambiguous.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from uuid import UUID

from django.db import transaction

from core.crypto import SealError
from core.db import ledger_cursor
from messaging.ledger import claims_log
from messaging.ledger.claim import LEASE
from messaging.ledger.claims_log import Claim, Noted

log = logging.getLogger(__name__)

#: The error code of such a batch, and of sends of which nobody can tell.
CODE = "lost_timeline"
#: Claims that are looked at every few seconds though the server is the same: one that lies about what it has on disk.
_NEWEST = 100


def look(*, patient: bool = False) -> int:
    """If the ledger is on another server than it was: bind what that one lacks. Returns the batches that were.

    Quick if nothing has changed. If somebody else looks, leave it to him; `patient`: and wait until he is done.
    Raises django.db.Error, redis.RedisError; then nothing is sent until it goes through.
    """
    server = _server()
    if claims_log.note(server):
        return 0
    if not claims_log.begin_look():
        if patient:
            claims_log.wait_for_look()
        return 0
    log.warning("ledger_moved")
    bound = _bind_missing()
    if _server() == server:  # else it has moved again: whoever comes next looks
        claims_log.end_look(server)
    return bound


def look_at_newest() -> int:
    """The newest claims are there, or all are looked at. Raises as `look`."""
    newest = [noted.batch for page in claims_log.newest_first(_NEWEST) for noted in page]
    return _bind_missing() if _missing(newest) else 0


def _server() -> str:
    with ledger_cursor() as sql:
        row = sql.one(f"SELECT {claims_log.SERVER}")
    assert row is not None
    return str(row[0])


def _missing(batches: Sequence[UUID]) -> set[UUID]:
    if not batches:
        return set()
    with ledger_cursor() as sql:
        there = sql.all("SELECT id FROM messaging_batches WHERE id = ANY (%(ids)s::uuid[])", {"ids": list(batches)})
    return set(batches) - {row[0] for row in there}


def _bind_missing() -> int:
    bound = 0
    newer: set[bytes] = set()  # sends of claims that were looked at already: those are newer
    unread: list[Noted] = []
    for page in claims_log.newest_first():
        missing = _missing([noted.batch for noted in page])
        for noted in page:
            unread.append(noted)
            if noted.batch in missing:
                *between, lost = _read(unread)
                unread.clear()
                newer.update(*(claim.sends for claim in between if claim))
                if lost:
                    bound += _bind(lost, noted, newer)
                    newer.update(lost.sends)
    if bound:
        log.error("claims_lost", extra={"batches": bound})
    return bound


def _read(noted: Sequence[Noted]) -> list[Claim | None]:
    found: list[Claim | None] = []
    for one in noted:
        try:
            found.append(one.claim())
        except SealError:
            log.error("claim_unreadable", extra={"batch": one.batch})
            found.append(None)
    return found


_OPEN = """
WITH job AS (
    INSERT INTO core_processed_jobs (job_key, fence, lease_until, created_at)
    VALUES ('batch:' || %(batch)s::text, 1, %(at)s + %(lease)s * interval '1 second', %(at)s)
    ON CONFLICT DO NOTHING
)
INSERT INTO messaging_batches (id, provider, channel, rail, state, send_ids, digest, idempotency_key, rendered_at, attempts,
                               error_code, error_detail, created_at)
VALUES (%(batch)s, %(provider)s, %(channel)s, %(rail)s, 'unknown', %(sends)s::uuid[], %(digest)s, %(key)s, %(rendered_at)s, 1,
        %(code)s, 'The database has lost it: a failover, or a restore to an earlier moment.', %(at)s)
ON CONFLICT (id) DO NOTHING
"""
_HOLDERS = """
SELECT FROM messaging_batches WHERE id = ANY (ARRAY (
    SELECT batch_id FROM messaging_sends WHERE id = ANY (%(mine)s::uuid[]) AND status = 'sending'
)) ORDER BY id FOR UPDATE
"""
_DUE = "UPDATE messaging_sends SET status = 'queued' WHERE id = ANY (%(mine)s::uuid[]) AND status = 'scheduled'"
_BIND = """
UPDATE messaging_sends SET status = 'sending', batch_id = %(batch)s
WHERE id = ANY (%(mine)s::uuid[]) AND status IN ('queued', 'sending')
"""


def _bind(claim: Claim, noted: Noted, newer: Collection[bytes]) -> int:
    """1 if the batch is there again, 0 if it holds nothing that waits, or somebody else was faster."""
    sends = [UUID(bytes=pk) for pk in claim.sends]
    mine = [pk for pk in sends if pk.bytes not in newer]
    with transaction.atomic(), ledger_cursor() as sql:
        # First: a twin waits for it, and leaves.
        opened = sql.run(
            _OPEN,
            {
                "batch": claim.batch,
                "at": noted.at,
                "lease": LEASE,
                "provider": claim.provider,
                "channel": claim.channel,
                "rail": claim.rail,
                "sends": sends,
                "digest": claim.digest,
                "key": claim.idempotency_key,
                "rendered_at": claim.rendered_at,
                "code": CODE,
            },
        )
        if opened and mine:
            sql.run(_HOLDERS, {"mine": mine})
            sql.run(_DUE, {"mine": mine})
            if sql.run(_BIND, {"mine": mine, "batch": claim.batch}):
                return 1
        transaction.set_rollback(True)
    return 0
