"""The gate of a lane: whoever has to keep claims out waits for those that are under way, and for none that come later.

Row locks alone do not give that: claims share a lane, so that one that comes while another holds it goes in although somebody
waits to have it alone, and with many workers there is always one inside. A claim therefore passes a gate first, sharing it,
and leaves the lane out if somebody has it alone *or waits for it*: the server's lock manager tells that. The row locks stay
what they were: the gate only decides who comes next.

A claim may also stand still (its worker is frozen, its host has vanished) until the server ends it, after seconds. Whoever waits
for that keeps all other claims of the lane out, and with them strangers who only shared a batch with it. So nobody waits for
longer than `BRIEF_WAIT` at a time: dispatch gives up (a hint is dropped, a record is repeated); a person's word stands
aside, for long enough that a claim which was kept out comes back, and tries again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from uuid import UUID

from django.db import OperationalError, transaction

from core.db.cursor import brief_waits, ledger_cursor

#: Seconds for which a patient one stands aside: above those for which dispatch leaves a lane out that it found closed.
ASIDE_SECONDS = 0.35
#: Tries of a patient one: 2 s in all, as for any other lock.
TRIES = 4

_LOCK_NOT_AVAILABLE = "55P03"
# The first half of an advisory lock's key; the second is a hash, and two lanes that share one only exclude each other.
_TENANTS, _BLASTS = 0x6475616C, 0x6475616D
_TENANT_KEY, _BLAST_KEY = "hashint8(k.id)", "uuid_hash(k.id)"


def _free(kind: int, key: str, array: str) -> str:
    return (
        f"ARRAY (SELECT k.id FROM unnest(%(ids)s::{array}) AS k (id)"
        f" WHERE pg_try_advisory_xact_lock_shared({kind}, {key}))"
    )


#: Those of `ids` that nobody is closing; until the transaction ends, whoever wants to close one waits.
FREE_TENANTS = _free(_TENANTS, _TENANT_KEY, "bigint[]")
FREE_BLASTS = _free(_BLASTS, _BLAST_KEY, "uuid[]")


def _close(kind: int, key: str, array: str) -> str:
    return (
        f"SELECT pg_advisory_xact_lock({kind}, q.key)"
        f" FROM (SELECT DISTINCT {key} AS key FROM unnest(%(ids)s::{array}) AS k (id) ORDER BY 1) q"
    )


_CLOSE_TENANTS = _close(_TENANTS, _TENANT_KEY, "bigint[]")
_CLOSE_BLASTS = _close(_BLASTS, _BLAST_KEY, "uuid[]")


def close_tenants(ids: Collection[int], *, patient: bool = False) -> None:
    """Wait for the claims of these tenants' single sends that are under way; no other begins until the transaction ends.

    Raises OperationalError if one does not end in time. `patient`: after some tries, between which others go in.
    """
    _close_all(_CLOSE_TENANTS, {"ids": list(ids)}, TRIES if patient else 1)


def close_blasts(ids: Collection[UUID], *, patient: bool = False) -> None:
    """As `close_tenants`, of blasts."""
    _close_all(_CLOSE_BLASTS, {"ids": list(ids)}, TRIES if patient else 1)


def _close_all(sql: str, parameters: Mapping[str, object], tries: int) -> None:
    for left in reversed(range(tries)):
        try:
            # A savepoint: what one try has closed is open again if it fails.
            with transaction.atomic(), brief_waits(), ledger_cursor() as cursor:
                cursor.run(sql, parameters)
                return
        except OperationalError as error:
            if not left or getattr(error.__cause__, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
        time.sleep(ASIDE_SECONDS)
