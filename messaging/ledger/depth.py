"""How many sends wait on the transactional rail, as far as its requests could take them soon. Counted up to a limit.

Two statements, each flat (`tests/messaging/ledger/test_plans.py`): which tenants have something due (with an idle
rail that is all), and how much, each tenant up to what it may send and all together up to the limit. What is paused, held,
or an inactive tenant's is not counted: nobody has to make room for what does not go.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.db.cursor import ledger_cursor
from messaging.domain.rails import PRIORITIES, Channel, Rail
from messaging.ledger.due import (
    QUEUED_OF_BLAST,
    SENDS,
    active,
    blasts_ring,
    open_blasts,
    single_due,
    singles_may_go,
    singles_ring,
)

_RAIL = Rail.TRANSACTIONAL
_PRIORITIES = PRIORITIES[_RAIL]
_RINGS = [singles_ring(f"s{p}", priority=p) for p in _PRIORITIES] + [
    blasts_ring(f"b{p}", priority=p) for p in _PRIORITIES
]
_WHO = " UNION ALL ".join(
    [
        f"SELECT r.tenant_id, {1 << p} AS singles FROM s{p} r WHERE r.hit AND {singles_may_go('r.tenant_id', p)}"
        for p in _PRIORITIES
    ]
    + [f"SELECT r.tenant_id, 0 FROM b{p} r WHERE r.hit AND {active('r.tenant_id')}" for p in _PRIORITIES]
)
#: Tenants of whom something may go, and of which priorities their single sends (a bit for each).
WHO = f"""
WITH RECURSIVE {", ".join(_RINGS)}
SELECT w.tenant_id, bit_or(w.singles) FROM ({_WHO}) w GROUP BY w.tenant_id
"""

_SINGLES = " UNION ALL ".join(
    f"SELECT 1 FROM {SENDS} WHERE t.singles & {1 << p} <> 0 AND {single_due(p)} AND s.tenant_id = t.tenant_id"
    for p in _PRIORITIES
)
_OF_BLASTS = " UNION ALL ".join(
    f"SELECT 1 FROM ({open_blasts('t.tenant_id', p)}) b CROSS JOIN LATERAL (SELECT 1 {QUEUED_OF_BLAST}) s"
    for p in _PRIORITIES
)
COUNT = f"""
SELECT count(*) FROM (
    SELECT FROM unnest(%(tenants)s::bigint[], %(singles)s::int[], %(most)s::bigint[]) AS t (tenant_id, singles, most)
    CROSS JOIN LATERAL (SELECT FROM ({_SINGLES} UNION ALL {_OF_BLASTS}) q LIMIT t.most) d
    LIMIT %(limit)s
) c
"""


def who_waits(channel: Channel) -> dict[int, int]:
    """Tenants (a thousand of each kind and priority at most) of whom something may go; which single sends count, as bits."""
    with ledger_cursor() as sql:
        return dict(sql.all(WHO, {"channel": channel, "rail": _RAIL}))


def count(channel: Channel, who: Mapping[int, int], most: Mapping[int, int], limit: int) -> int:
    """Due sends of the tenants in `who`, of each at most `most`, in all at most `limit`."""
    tenants = [tenant for tenant in who if most[tenant] > 0]
    if not tenants:
        return 0
    parameters = {
        "channel": channel,
        "rail": _RAIL,
        "tenants": tenants,
        "singles": [who[tenant] for tenant in tenants],
        "most": [most[tenant] for tenant in tenants],
        "limit": limit,
    }
    with ledger_cursor() as sql:
        row = sql.one(COUNT, parameters)
    assert row is not None
    return int(row[0])
