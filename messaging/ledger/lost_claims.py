"""Claims that the database has lost (`claims_log` has them): bound and marked again before anything else is sent.

The batch is written as it was, under its key: a provider that knows the key repeats what it answered then; one that can be
asked is asked; with any other its sends are ambiguous. Nothing of it leaves under a new key. A send belongs to the newest claim
that holds it: an older one of the same send had ended, without an acceptance of it, or there would be no newer one. A batch
from which a send was taken in this way cannot be rebuilt: what is left in it becomes ambiguous.

A claim is noted after its second commit, so a noted batch that the ledger has as *preparing* is lost as well.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from django.db import Error

from core.db.cursor import ledger_cursor
from core.security.crypto import SealError
from messaging.ledger import claims_log, rebind
from messaging.ledger.claims_log import Claim, Noted

log = logging.getLogger(__name__)

#: Claims that are looked at every few seconds though the server is the same: one that lies about what it has on disk.
_NEWEST = 100


def scan(*, patient: bool = False) -> int:
    """If the ledger is on another server than it was: bind what that one lacks. Returns the batches that were.

    Quick if nothing has changed. If somebody else looks, leave it to them; `patient`: and wait until they are done.
    Raises django.db.Error, redis.RedisError; then nothing is sent until it goes through.
    """
    server = _server()
    if claims_log.is_known(server):
        return 0
    bound = _compare(server)
    if bound is None and patient:
        claims_log.wait_for_look()
    if bound is not None:
        log.warning("ledger_moved")
    return bound or 0


class _Tried:
    """Of the newest claims of which nothing could be bound: their sends were lost, too. On which server."""

    server = ""
    batches: frozenset[UUID] = frozenset()


def scan_newest() -> int:
    """The newest claims are there, or all are looked at, with the gate closed as in `scan`. Raises as it does."""
    newest = [noted.batch for page in claims_log.newest_first(_NEWEST) for noted in page]
    missing = _missing(newest)
    if not missing:
        return 0
    server = _server()
    if server == _Tried.server and missing <= _Tried.batches:
        return 0
    bound = _compare(server)
    if bound is not None:
        _Tried.server, _Tried.batches = server, frozenset(_missing(newest))
    return bound or 0


def _compare(server: str) -> int | None:
    """Bind what the server lacks, while no request is made. None: somebody else is at it."""
    scan = claims_log.begin_look()
    if scan is None:
        return None
    try:
        bound = _bind_missing(scan)
        if _server() == server:
            claims_log.end_look(server)
        else:  # it has moved again
            claims_log.abandon_look(scan)
    except _Unreadable as error:
        # The look stays begun until its time has run out: others have their turn, and nobody tries without a pause.
        log.error("claims_unreadable", extra={"batch": error.batch, "do": _BRING_THE_KEY})
        return 0
    except Error:
        claims_log.abandon_look(scan)
        raise
    return bound


class _Unreadable(Exception):
    """Without what is in this claim, nobody knows whose the sends of older ones are."""

    def __init__(self, batch: UUID) -> None:
        super().__init__(batch)
        self.batch = batch


_BRING_THE_KEY = (
    "Give this process all ENCRYPTION_KEYS. Nothing is sent until one that has them has compared the claims."
)


def _server() -> str:
    with ledger_cursor() as sql:
        row = sql.one(f"SELECT {claims_log.SERVER}")
    assert row is not None
    return str(row[0])


_THERE = "SELECT id FROM messaging_batches WHERE id = ANY (%(ids)s::uuid[]) AND state <> 'preparing'"


def _missing(batches: Sequence[UUID]) -> set[UUID]:
    if not batches:
        return set()
    with ledger_cursor() as sql:
        there = sql.all(_THERE, {"ids": list(batches)})
    return set(batches) - {row[0] for row in there}


def _bind_missing(scan: str) -> int:
    bound = 0
    newer: set[bytes] = set()  # sends of claims that were looked at already: those are newer
    unread: list[Noted] = []
    for page in claims_log.newest_first():
        claims_log.keep_look(scan)
        missing = _missing([noted.batch for noted in page])
        for noted in page:
            unread.append(noted)
            if noted.batch in missing:
                *between, lost = _read(unread)
                unread.clear()
                newer.update(*(claim.sends for claim in between))
                bound += rebind.bind(lost, noted, newer)
                newer.update(lost.sends)
    if bound:
        log.error("claims_lost", extra={"batches": bound})
    return bound


def _read(noted: Sequence[Noted]) -> list[Claim]:
    found: list[Claim] = []
    for one in noted:
        try:
            found.append(one.claim())
        except SealError:
            raise _Unreadable(one.batch) from None
    return found
