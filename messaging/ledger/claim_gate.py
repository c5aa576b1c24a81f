"""The gate of a lane: whoever has to keep claims out waits for those that are under way, and for none that come later.

Row locks alone do not give that: claims share a lane, so that one that comes while another holds it goes in although somebody
waits to have it alone, and with many workers there is always one inside. A claim therefore passes a gate first, sharing it,
and leaves the lane out if somebody has it alone *or waits for it*: the server's lock manager tells that. The row locks stay
what they were: the gate only decides who comes next.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from core.db.cursor import ledger_cursor

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


def close_tenants(ids: Collection[int]) -> None:
    """Wait for the claims of these tenants' single sends that are under way; no other begins until the transaction ends."""
    with ledger_cursor() as sql:
        sql.run(_CLOSE_TENANTS, {"ids": list(ids)})


def close_blasts(ids: Collection[UUID]) -> None:
    """As `close_tenants`, of blasts."""
    with ledger_cursor() as sql:
        sql.run(_CLOSE_BLASTS, {"ids": list(ids)})
