"""What lanes remember of batches that ended unknown again and again while the provider accepted others."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from core.db.cursor import ledger_cursor
from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel, Rail
from messaging.ledger.lanes import add_missing, named

#: Seconds for which a stall is remembered.
REMEMBERED = 3600
#: Seconds within which an acceptance of others says that the provider is well.
RECENT = 30

# The newest batches: if none of them was accepted, it is the provider.
_ACCEPTS_OTHERS = """
SELECT EXISTS (
    SELECT FROM (SELECT * FROM messaging_batches ORDER BY id DESC LIMIT 50) b
    WHERE b.provider = %(provider)s AND b.state IN ('accepted', 'accepted_in_part') AND b.id <> %(batch)s
      AND b.finished_at > clock_timestamp() - %(recent)s * interval '1 second'
      AND (NOT %(since)s OR b.finished_at > (SELECT created_at FROM messaging_batches WHERE id = %(batch)s))
)
"""
_ADD = """
SET stalls = least(100, CASE WHEN l.stalls_until > clock_timestamp() THEN l.stalls ELSE 0 END + %(n)s),
    stalls_until = clock_timestamp() + %(remembered)s * interval '1 second'
"""
_ADD_TO_TENANTS = f"""
UPDATE messaging_tenant_lanes l {_ADD}
FROM unnest(%(tenants)s::bigint[], %(priorities)s::smallint[]) AS k (tenant_id, priority)
WHERE l.tenant_id = k.tenant_id AND l.channel = %(channel)s AND l.rail = %(rail)s AND l.priority = k.priority
RETURNING l.tenant_id, l.priority, l.stalls
"""
_ADD_TO_BLASTS = f"""
UPDATE messaging_blasts l {_ADD} WHERE l.id = ANY (%(blasts)s::uuid[]) RETURNING l.tenant_id, l.id, l.stalls
"""


def accepts_others(provider: str, batch: UUID, *, since_its_claim: bool = False) -> bool:
    """Whether the provider has accepted another batch just now."""
    parameters = {"provider": provider, "batch": batch, "recent": RECENT, "since": since_its_claim}
    with ledger_cursor() as sql:
        row = sql.one(_ACCEPTS_OTHERS, parameters)
    return bool(row and row[0])


def add(channel: Channel, rail: Rail, lanes: Sequence[LaneKey], n: int) -> dict[LaneKey, int]:
    """Count `n` more stalls at these lanes, which the caller has locked. Returns how many each has now."""
    singles = [lane for lane in lanes if lane.blast is None]
    blasts = [lane.blast for lane in lanes if lane.blast is not None]
    parameters = named(channel, rail, singles) | {"blasts": blasts, "n": n, "remembered": REMEMBERED}
    found: dict[LaneKey, int] = {}
    with ledger_cursor() as sql:
        if singles:
            add_missing(sql, parameters)
            for tenant, priority, stalls in sql.all(_ADD_TO_TENANTS, parameters):
                found[LaneKey(tenant, None, priority)] = stalls
        if blasts:
            for tenant, blast, stalls in sql.all(_ADD_TO_BLASTS, parameters):
                found[LaneKey(tenant, blast)] = stalls
    return found
