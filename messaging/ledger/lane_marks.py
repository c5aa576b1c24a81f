"""Lanes of single sends: which are open, kept where an index sees it (`messaging.models.live`); and rows that say nothing."""

from __future__ import annotations

from django.db import transaction

from core.db.cursor import ledger_cursor
from messaging.ledger.due import LANE_CLOSED, NOW, active
from messaging.ledger.lanes import SAYS_NOTHING

#: Marks that one beat judges at most, and lanes whose closing ends.
LIMIT = 5_000
#: Open lanes that one beat looks at again: they only tidy up, as what has run empty is not met anyway.
_OPEN = 500
#: Seconds after which a closed lane is looked at again, whatever became of the mark that its opening left.
AGAIN = 60
#: Lanes whose rows one run deletes: their tenants are locked meanwhile.
_IDLE = 500
#: Tenants with due single sends that one run looks up in the marks.
_PROBES = 1_000

# One clock at a time: of two, the one with the older snapshot could delete the mark that the other keeps.
_MINE = "SELECT pg_try_advisory_xact_lock(0x6475616E, 0)"

_LANE = "channel, rail, priority, tenant_id"

# Facts and marks are seen in one snapshot. So a mark that is deleted here was left by a transaction whose sends were seen, too;
# one that is not seen yet brings its own.
JUDGE = f"""
WITH wanted AS MATERIALIZED (
    (SELECT {_LANE} FROM messaging_due_lanes WHERE NOT judged ORDER BY id LIMIT %(limit)s)
    UNION
    (SELECT {_LANE} FROM messaging_due_lanes
     WHERE closed_until IS NOT NULL AND closed_until <= {NOW} ORDER BY closed_until LIMIT %(limit)s)
    UNION
    (SELECT {_LANE} FROM messaging_due_lanes
     WHERE judged AND closed_until IS NULL AND id > %(after)s ORDER BY id LIMIT %(open)s)
),
facts AS MATERIALIZED (
    SELECT w.*, (
        SELECT s.id FROM messaging_sends s
        WHERE s.channel = w.channel AND s.rail = w.rail AND s.priority = w.priority AND s.tenant_id = w.tenant_id
          AND s.status = 'queued' AND s.blast_id IS NULL
        ORDER BY s.id LIMIT 1
    ) IS NOT NULL AS due,
    CASE WHEN NOT {active("w.tenant_id")} THEN clock_timestamp() + {AGAIN} * interval '1 second'
    ELSE (
        SELECT least(CASE WHEN NOT x.paused THEN x.held_until END, clock_timestamp() + {AGAIN} * interval '1 second')
        FROM messaging_tenant_lanes x
        WHERE x.tenant_id = w.tenant_id AND x.channel = w.channel AND x.rail = w.rail AND x.priority = w.priority
          AND {LANE_CLOSED}
    ) END AS until
    FROM wanted w
),
marks AS MATERIALIZED (
    SELECT l.id, f.due AND l.newest AS keep, f.until, l.judged, l.closed_until
    FROM facts f CROSS JOIN LATERAL (
        SELECT l.id, l.judged, l.closed_until, row_number() OVER (ORDER BY l.id DESC) = 1 AS newest
        FROM messaging_due_lanes l
        WHERE l.tenant_id = f.tenant_id AND l.channel = f.channel AND l.rail = f.rail AND l.priority = f.priority
    ) l
),
gone AS (
    DELETE FROM messaging_due_lanes WHERE id = ANY (ARRAY (SELECT id FROM marks WHERE NOT keep)) RETURNING id
),
kept AS (
    UPDATE messaging_due_lanes l SET judged = true, closed_until = m.until
    FROM marks m
    WHERE l.id = m.id AND l.id = ANY (ARRAY (
        SELECT id FROM marks WHERE keep AND (NOT judged OR closed_until IS DISTINCT FROM until)
    ))
    RETURNING l.id
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM kept),
       (SELECT max(id) FROM (
            SELECT id FROM messaging_due_lanes WHERE judged AND closed_until IS NULL AND id > %(after)s ORDER BY id LIMIT %(open)s
        ) o HAVING count(*) = %(open)s)
"""


#: Before every lane.
_START = ("", "", 0, 0)


class _Place:
    """Where the next look at open lanes, and at tenants with due sends, goes on."""

    after = 0
    due: tuple[str, str, int, int] = _START


def judge_lanes() -> int:
    """Of each lane that somebody has marked, and of some others: is something due, is it open? Returns rows written."""
    with transaction.atomic(), ledger_cursor() as sql:
        mine = sql.one(_MINE)
        if not (mine and mine[0]):
            return 0
        row = sql.one(JUDGE, {"limit": LIMIT, "open": _OPEN, "after": _Place.after})
    assert row is not None
    _Place.after = row[1] or 0
    return int(row[0])


# Straight from the ledger, by a loose scan: the next tenant of a lane, or the next lane.
MISSING = f"""
WITH RECURSIVE found AS (
    (SELECT {_LANE}, 1 AS n FROM messaging_sends
     WHERE status = 'queued' AND blast_id IS NULL
       AND ({_LANE}) > (%(channel)s::text, %(rail)s::text, %(priority)s::smallint, %(tenant)s::bigint)
     ORDER BY {_LANE} LIMIT 1)
    UNION ALL
    SELECT d.*, r.n + 1
    FROM found r CROSS JOIN LATERAL (
        SELECT {_LANE} FROM messaging_sends s
        WHERE s.status = 'queued' AND s.blast_id IS NULL
          AND (s.channel, s.rail, s.priority, s.tenant_id) > (r.channel, r.rail, r.priority, r.tenant_id)
        ORDER BY {_LANE} LIMIT 1
    ) d
    WHERE r.n < {_PROBES}
),
marked AS (
    INSERT INTO messaging_due_lanes ({_LANE})
    SELECT f.channel, f.rail, f.priority, f.tenant_id FROM found f WHERE (
        SELECT l.id FROM messaging_due_lanes l
        WHERE l.tenant_id = f.tenant_id AND l.channel = f.channel AND l.rail = f.rail AND l.priority = f.priority LIMIT 1
    ) IS NULL
    RETURNING id
)
SELECT (SELECT count(*) FROM marked), f.channel, f.rail, f.priority, f.tenant_id
FROM (SELECT 1) one LEFT JOIN found f ON f.n = {_PROBES}
"""


def mark_missing() -> int:
    """Marks for lanes that have something due and none: there are such only if the ledger was filled without its triggers."""
    with transaction.atomic(), ledger_cursor() as sql:
        row = sql.one(MISSING, dict(zip(("channel", "rail", "priority", "tenant"), _Place.due, strict=True)))
    assert row is not None
    _Place.due = row[1:] if row[1] is not None else _START
    return int(row[0])


IDLE = f"SELECT id, tenant_id FROM messaging_tenant_lanes WHERE {SAYS_NOTHING} ORDER BY id LIMIT {_IDLE}"
_LOCK_TENANTS = (
    "SELECT id FROM core_tenants WHERE id = ANY (%(tenants)s::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"
)
_DELETE = f"""
DELETE FROM messaging_tenant_lanes
WHERE id = ANY (%(lanes)s::bigint[]) AND tenant_id = ANY (%(tenants)s::bigint[]) AND {SAYS_NOTHING}
"""


def prune_lanes() -> int:
    """What is known of lanes that are like any other again: no row says the same."""
    with transaction.atomic(), ledger_cursor() as sql:
        idle = sql.all(IDLE)
        if not idle:
            return 0
        locked = [row[0] for row in sql.all(_LOCK_TENANTS, {"tenants": list({tenant for _, tenant in idle})})]
        return sql.run(_DELETE, {"lanes": [pk for pk, _ in idle], "tenants": locked})
