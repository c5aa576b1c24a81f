"""How many sends wait on the transactional rail, as far as its requests could take them soon. Counted up to a limit.

Two statements, each flat (`tests/messaging/yielding/test_depth_plans.py`): which tenants have something due (with an idle
rail that is all), and how much, each tenant up to what it may send and all together up to the limit. What is paused, held,
or an inactive tenant's is not counted: nobody has to make room for what does not go.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.db import ledger_cursor
from messaging.ledger.candidates import BLAST_RUNNING, QUEUED_OF_BLAST, SINGLE_DUE, open_blasts, ring
from messaging.rails import PRIORITIES, Channel, Rail

_RAIL = Rail.TRANSACTIONAL
_SENDS, _BLASTS = "messaging_sends s", "messaging_blasts b"


def _of(priority: int, due: str) -> str:
    return due.replace("%(priority)s", str(priority))


_SINGLE_RINGS = {f"s{p}": ring(f"s{p}", _SENDS, _of(p, SINGLE_DUE), "true") for p in PRIORITIES[_RAIL]}
_BLAST_RINGS = {f"b{p}": ring(f"b{p}", _BLASTS, _of(p, BLAST_RUNNING), "true") for p in PRIORITIES[_RAIL]}


def _all_of(rings: Mapping[str, str]) -> str:
    return " UNION ALL ".join(f"SELECT tenant_id FROM {name}" for name in rings)


#: Tenants with something due on the rail, and whether their single sends may go (else only their blasts).
WHO = f"""
WITH RECURSIVE {", ".join([*_SINGLE_RINGS.values(), *_BLAST_RINGS.values()])},
closed AS MATERIALIZED (
    SELECT tenant_id FROM messaging_tenant_lanes
    WHERE channel = %(channel)s AND rail = %(rail)s
      AND (paused OR (hold_code <> '' AND held_until > clock_timestamp()))
),
single AS MATERIALIZED (
    SELECT DISTINCT tenant_id FROM ({_all_of(_SINGLE_RINGS)}) r
    WHERE tenant_id IS NOT NULL AND tenant_id <> ALL (ARRAY (SELECT tenant_id FROM closed))
)
SELECT r.tenant_id, bool_or(r.single)
FROM (
    SELECT tenant_id, true AS single FROM single
    UNION ALL SELECT tenant_id, false FROM ({_all_of(_BLAST_RINGS)}) b WHERE tenant_id IS NOT NULL
) r
WHERE (SELECT t.active FROM core_tenants t WHERE t.id = r.tenant_id)
GROUP BY r.tenant_id
"""

_SINGLES = " UNION ALL ".join(
    f"SELECT 1 FROM {_SENDS} WHERE t.single AND {_of(p, SINGLE_DUE)} AND s.tenant_id = t.tenant_id"
    for p in PRIORITIES[_RAIL]
)
_OF_BLASTS = " UNION ALL ".join(
    f"SELECT 1 FROM ({_of(p, open_blasts('t.tenant_id'))}) b CROSS JOIN LATERAL (SELECT 1 {QUEUED_OF_BLAST}) s"
    for p in PRIORITIES[_RAIL]
)
COUNT = f"""
SELECT count(*) FROM (
    SELECT FROM unnest(%(tenants)s::bigint[], %(single)s::boolean[], %(most)s::bigint[]) AS t (tenant_id, single, most)
    CROSS JOIN LATERAL (SELECT FROM ({_SINGLES} UNION ALL {_OF_BLASTS}) q LIMIT t.most) d
    LIMIT %(limit)s
) c
"""


def who_waits(channel: Channel) -> dict[int, bool]:
    """Tenants (a thousand of each kind and priority at most) with something due; whether their single sends count."""
    with ledger_cursor() as sql:
        return dict(sql.all(WHO, {"channel": channel, "rail": _RAIL}))


def count(channel: Channel, who: Mapping[int, bool], most: Mapping[int, int], limit: int) -> int:
    """Due sends of the tenants in `who`, of each at most `most`, in all at most `limit`."""
    tenants = [tenant for tenant in who if most[tenant] > 0]
    if not tenants:
        return 0
    parameters = {
        "channel": channel,
        "rail": _RAIL,
        "tenants": tenants,
        "single": [who[tenant] for tenant in tenants],
        "most": [most[tenant] for tenant in tenants],
        "limit": limit,
    }
    with ledger_cursor() as sql:
        row = sql.one(COUNT, parameters)
    assert row is not None
    return int(row[0])
