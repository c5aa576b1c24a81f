"""Who has something to send on a rail, at a flat cost.

Two sources (docs/decisions/0001): single sends are found by a loose index scan over tenants (one probe a tenant,
whatever their backlog), blast sends through the few blast rows that are running and say that they have due sends. Both
start behind the ring's cursor and stop at `TENANTS`. Nothing here locks or decides: the claim looks again, under lock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import TupleRow

from core.db import ledger_cursor
from messaging.ledger.lanes import LaneKey
from messaging.rails import Channel, Rail

#: Tenants that one batch is split among at most: as many as the largest batch has places.
TENANTS = 100
#: Tenants looked at for that, those that are paused, held or starved included: bounds the worst case.
_PROBES = 1000
#: Blasts of one tenant looked at for one batch, oldest first.
_BLASTS = 20
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


#: Single sends of one priority that are due: the predicate of the partial index `messaging_sends_single_due`.
SINGLE_DUE = (
    "s.channel = %(channel)s AND s.rail = %(rail)s AND s.priority = %(priority)s"
    " AND s.status = 'queued' AND s.blast_id IS NULL"
)
BLAST_RUNNING = (
    "b.channel = %(channel)s AND b.rail = %(rail)s AND b.priority = %(priority)s AND b.state = 'running' AND b.has_due"
)


def ring(name: str, table: str, due: str, bound: str) -> str:
    """A loose index scan: the tenants of `table` with something due, ascending, each by one probe of the index."""
    first = f"SELECT {table[-1]}.tenant_id FROM {table} WHERE {due} AND {bound} ORDER BY 1 LIMIT 1"
    step = (
        f"SELECT {table[-1]}.tenant_id FROM {table} WHERE {due} AND {bound} AND {table[-1]}.tenant_id > r.tenant_id"
        " ORDER BY 1 LIMIT 1"
    )
    return (
        f"{name} (tenant_id, n) AS ((SELECT ({first}), 1) UNION ALL"
        f" SELECT ({step}), r.n + 1 FROM {name} r WHERE r.tenant_id IS NOT NULL AND r.n < {_PROBES})"
    )


def _wanted(after: str, upto: str, extra: str) -> str:
    return f"""
    SELECT r.tenant_id
    FROM (SELECT tenant_id FROM {after} UNION ALL SELECT tenant_id FROM {upto}) r
    WHERE r.tenant_id IS NOT NULL AND r.tenant_id <> ALL (%(starved)s::bigint[]) {extra}
      AND (SELECT t.active FROM core_tenants t WHERE t.id = r.tenant_id)
    LIMIT {TENANTS}"""


def _enough(tenants: str) -> str:
    """How far one tenant's sends are counted. With many tenants each gets little, and a tenth of them could fill the
    batch: counting all to its end would be most of the work."""
    return (
        "(SELECT CASE WHEN %(full)s THEN %(max_batch)s + 1"
        f" ELSE least(%(max_batch)s + 1, greatest({_FEW}, {_FEW} * (%(max_batch)s + 1) / greatest(1, count(*)))) END"
        f" FROM {tenants})"
    )


_SENDS, _BLAST_ROWS = "messaging_sends s", "messaging_blasts b"


def open_blasts(tenant: str) -> str:
    return f"""
    SELECT b.id, b.low, b.hold_code <> '' AS held, b.isolated OR b.hold_code <> '' AS alone, b.party, b.suspects
    FROM {_BLAST_ROWS}
    WHERE {BLAST_RUNNING} AND b.tenant_id = {tenant} AND (b.hold_code = '' OR b.held_until <= clock_timestamp())
    ORDER BY b.id LIMIT {_BLASTS}"""


#: Due sends of the blast row `b`, from its hint on.
QUEUED_OF_BLAST = """
    FROM messaging_sends s
    WHERE s.blast_id = b.id AND s.status = 'queued'
      AND s.id >= coalesce(b.low, '00000000-0000-0000-0000-000000000000')"""
# `has_due` is up to a beat of the clock old. Blasts that have run empty since must not take the places of others.
_HAS_DUE = f"""AND EXISTS (
        SELECT FROM ({open_blasts("r.tenant_id")}) b CROSS JOIN LATERAL (SELECT {QUEUED_OF_BLAST} LIMIT 1) s
    )"""

CANDIDATES = f"""
WITH RECURSIVE
lanes AS MATERIALIZED (
    SELECT tenant_id, paused OR (hold_code <> '' AND held_until > clock_timestamp()) AS closed,
           isolated OR hold_code <> '' AS alone, hold_code <> '' AS held, party, suspects
    FROM messaging_tenant_lanes
    WHERE channel = %(channel)s AND rail = %(rail)s AND priority = %(priority)s AND (paused OR isolated OR hold_code <> '')
),
{ring("s_after", _SENDS, SINGLE_DUE, "s.tenant_id > %(cursor)s")},
{ring("s_upto", _SENDS, SINGLE_DUE, "s.tenant_id <= %(cursor)s")},
{ring("b_after", _BLAST_ROWS, BLAST_RUNNING, "b.tenant_id > %(cursor)s")},
{ring("b_upto", _BLAST_ROWS, BLAST_RUNNING, "b.tenant_id <= %(cursor)s")},
single_tenants AS MATERIALIZED ({
    _wanted("s_after", "s_upto", "AND r.tenant_id <> ALL (ARRAY (SELECT l.tenant_id FROM lanes l WHERE l.closed))")
}),
blast_tenants AS MATERIALIZED ({_wanted("b_after", "b_upto", _HAS_DUE)})
SELECT t.tenant_id, NULL::uuid AS blast_id, due.n, coalesce(l.alone, false) AS alone, coalesce(l.held, false) AS trial,
       l.party, coalesce(l.suspects, 0) AS suspects
FROM single_tenants t
LEFT JOIN lanes l ON l.tenant_id = t.tenant_id
CROSS JOIN LATERAL (
    SELECT count(*) AS n
    FROM (SELECT FROM {_SENDS} WHERE {SINGLE_DUE} AND s.tenant_id = t.tenant_id LIMIT {_enough("single_tenants")}) q
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


#: Where a look that met nothing but closed tenants has stopped; null if it has seen all there are.
RING_END = f"""
WITH RECURSIVE
{ring("s_after", _SENDS, SINGLE_DUE, "s.tenant_id > %(cursor)s")},
{ring("s_upto", _SENDS, SINGLE_DUE, "s.tenant_id <= %(cursor)s")},
{ring("b_after", _BLAST_ROWS, BLAST_RUNNING, "b.tenant_id > %(cursor)s")},
{ring("b_upto", _BLAST_ROWS, BLAST_RUNNING, "b.tenant_id <= %(cursor)s")}
SELECT coalesce(
    least((SELECT tenant_id FROM s_after WHERE n = {_PROBES}), (SELECT tenant_id FROM b_after WHERE n = {_PROBES})),
    least((SELECT tenant_id FROM s_upto WHERE n = {_PROBES}), (SELECT tenant_id FROM b_upto WHERE n = {_PROBES}))
)
"""
#: Times that one look goes on behind closed tenants.
_ROUNDS = 20


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
        rows = sql.all(CANDIDATES, parameters)
        for _ in range(_ROUNDS):
            # A thousand closed tenants in a row: look behind them, else they would hide all others for ever.
            if rows:
                break
            end = sql.one(RING_END, parameters)
            if end is None or end[0] is None:
                break
            parameters["cursor"] = cursor = end[0]
            rows = sql.all(CANDIDATES, parameters)
        found = _lanes(priority, rows)
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


#: Batches of a provider's rail whose lease has run out: the worker vanished, or the next try is due.
LAPSED = """
FROM messaging_batches b JOIN core_processed_jobs j ON j.job_key = 'batch:' || b.id
WHERE b.channel = %(channel)s AND b.rail = %(rail)s AND b.provider = %(provider)s AND b.state IN ('claimed', 'unknown')
  AND j.done_at IS NULL AND j.lease_until <= clock_timestamp()
"""
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
