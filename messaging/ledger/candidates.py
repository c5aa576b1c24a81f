"""Who has something to send on a rail, at a flat cost.

Two sources (docs/decisions/0001, 0016): single sends are found by a loose scan of two indexes, of due sends and of open
lanes (a few probes a tenant, whatever their backlog, and none for those that are closed), blast sends through the few
blasts whose hint says that something of them may go. Both start behind the ring's cursor and stop at `TENANTS`. Nothing
here locks or decides: the claim looks again, under lock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import TupleRow

from core.db.cursor import ledger_cursor
from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel, Rail
from messaging.ledger.due import (
    LANE_CLOSED,
    LAPSED,
    QUEUED_OF_BLAST,
    SENDS,
    active,
    blasts_ring,
    lane_of,
    open_blasts,
    single_due,
    singles_ring,
)

#: Tenants that one batch is split among at most: as many as the largest batch has places.
TENANTS = 100
#: Sends of each tenant that are counted when there are as many tenants as places.
_FEW = 10


@dataclass(frozen=True, slots=True)
class Lane:
    """Due sends of one lane: `sends` of them, counted up to one more than a batch holds.

    `alone`: the provider refused a batch with this lane in it; its sends go out apart, with the lanes of its `party` or alone.
    `suspects`: a culprit is among so many of its oldest sends, and these are half of them.
    `trial`: it is held, and one of its `due` sends finds out whether the cause is gone.
    """

    tenant: int
    priority: int
    blast: UUID | None
    sends: int
    alone: bool
    trial: bool = False
    party: UUID | None = None
    suspects: int = 0
    due: int = 0

    @property
    def key(self) -> LaneKey:
        return LaneKey(self.tenant, self.blast, self.priority if self.blast is None else None)


def _wanted(after: str, upto: str) -> str:
    return f"(SELECT tenant_id FROM {after} WHERE hit UNION ALL SELECT tenant_id FROM {upto} WHERE hit) r"


_NOT_STARVED = "r.tenant_id NOT IN (SELECT tenant_id FROM starved)"


def _enough(tenants: str) -> str:
    """How far one tenant's sends are counted. With many tenants each gets little, and a tenth of them could fill the
    batch: counting all to its end would be most of the work."""
    return (
        "(SELECT CASE WHEN %(full)s THEN %(max_batch)s + 1"
        f" ELSE least(%(max_batch)s + 1, greatest({_FEW}, {_FEW} * (%(max_batch)s + 1) / greatest(1, count(*)))) END"
        f" FROM {tenants})"
    )


_HALVES: tuple[tuple[str, str, str | None], ...] = (("after", "%(cursor)s", None), ("upto", "0", "%(cursor)s"))
_RINGS = ",\n".join(
    [singles_ring(f"s_{half}", after=after, upto=upto, starved="starved") for half, after, upto in _HALVES]
    + [blasts_ring(f"b_{half}", after=after, upto=upto, starved="starved") for half, after, upto in _HALVES]
)

# A hint is up to a beat of the clock old. Blasts that have run empty since must not take the places of others.
CANDIDATES = f"""
WITH RECURSIVE
starved AS MATERIALIZED (SELECT unnest(%(starved)s::bigint[]) AS tenant_id),
{_RINGS},
single_tenants AS MATERIALIZED (
    SELECT r.tenant_id, x.alone, x.held, x.party, x.suspects
    FROM {_wanted("s_after", "s_upto")}
    LEFT JOIN LATERAL (
        SELECT {LANE_CLOSED} AS closed, x.isolated OR x.hold_code <> '' AS alone, x.hold_code <> '' AS held,
               x.party, x.suspects
        FROM {lane_of("r.tenant_id")} LIMIT 1
    ) x ON true
    WHERE {_NOT_STARVED} AND {active("r.tenant_id")} AND x.closed IS NOT TRUE
    LIMIT {TENANTS}
),
blast_tenants AS MATERIALIZED (
    SELECT r.tenant_id
    FROM {_wanted("b_after", "b_upto")}
    WHERE {_NOT_STARVED} AND {active("r.tenant_id")} AND EXISTS (
        SELECT FROM ({open_blasts("r.tenant_id")}) b CROSS JOIN LATERAL (SELECT {QUEUED_OF_BLAST} LIMIT 1) s
    )
    LIMIT {TENANTS}
)
SELECT t.tenant_id, NULL::uuid AS blast_id, due.n, coalesce(t.alone, false) AS alone, coalesce(t.held, false) AS trial,
       t.party, coalesce(t.suspects, 0) AS suspects
FROM single_tenants t
CROSS JOIN LATERAL (
    SELECT count(*) AS n
    FROM (SELECT FROM {SENDS} WHERE {single_due()} AND s.tenant_id = t.tenant_id LIMIT {_enough("single_tenants")}) q
) due
UNION ALL
SELECT t.tenant_id, due.blast_id, due.n, due.alone, due.held, due.party, due.suspects
FROM blast_tenants t
CROSS JOIN LATERAL (
    SELECT q.blast_id, q.held, q.alone, q.party, q.suspects, count(*) AS n
    FROM (
        SELECT b.id AS blast_id, b.held, b.alone, b.party, b.suspects
        FROM ({open_blasts("t.tenant_id")}) b
        CROSS JOIN LATERAL (SELECT {QUEUED_OF_BLAST} LIMIT {_enough("blast_tenants")}) s
        LIMIT {_enough("blast_tenants")}
    ) q
    GROUP BY q.blast_id, q.held, q.alone, q.party, q.suspects
) due
"""


def candidates(
    channel: Channel, rail: Rail, priority: int, *, cursor: int, starved: Collection[int], max_batch: int
) -> list[Lane]:
    """Lanes of up to `TENANTS` tenants in ring order behind `cursor`, without the tenants in `starved`; within a
    tenant its single sends first, then its blasts, oldest first.

    Together they count at least a full batch, or all that is due.
    """
    parameters = {
        "channel": channel,
        "rail": rail,
        "priority": priority,
        "cursor": cursor,
        "starved": list(starved),
        "max_batch": max_batch,
        "full": False,
    }
    with ledger_cursor() as sql:
        found = _lanes(priority, sql.all(CANDIDATES, parameters))
        if sum(lane.sends for lane in found) <= max_batch and any(lane.due >= _FEW for lane in found):
            # Not enough for a batch, and somebody may have more than was counted.
            found = _lanes(priority, sql.all(CANDIDATES, parameters | {"full": True}))
    ring = sorted({lane.tenant for lane in found}, key=lambda tenant: (tenant <= cursor, tenant))[:TENANTS]
    place = {tenant: i for i, tenant in enumerate(ring)}
    kept = [lane for lane in found if lane.tenant in place]
    kept.sort(key=lambda lane: (place[lane.tenant], lane.blast is not None, lane.blast or UUID(int=0)))
    return kept


def _lanes(priority: int, rows: list[TupleRow]) -> list[Lane]:
    found = []
    for tenant, blast, due, alone, trial, party, suspects in rows:
        sends = min(due, 1) if trial else min(due, (suspects + 1) // 2) if suspects else due
        if sends:
            found.append(Lane(tenant, priority, blast, sends, alone, trial, party, suspects, due))
    return found


# Stepping over what is locked, as the take-over would: its worker may have vanished in the midst of recording, and would keep
# each leader busy with a batch that nobody can have. In share: those who look at the same moment do not hide it from each other.
_REPLAY = f"""
SELECT b.id {LAPSED} AND b.id <> ALL (%(passed)s::uuid[]) ORDER BY j.lease_until LIMIT 1 FOR SHARE OF b, j SKIP LOCKED
"""


def next_replay(provider: str, channel: Channel, rail: Rail, passed: Collection[UUID] = ()) -> UUID | None:
    """The provider's batch that has waited longest for being taken up again, without those in `passed`, and without those that
    somebody has locked. Not inside a transaction: the lock of the look must end with it."""
    with ledger_cursor() as sql:
        row = sql.one(_REPLAY, {"provider": provider, "channel": channel, "rail": rail, "passed": list(passed)})
    return row[0] if row else None
