"""What is due, and whose it is: the one definition, as pieces of SQL for candidates, claim, depth, clock and metrics.

A send that is queued is *due*. It *may go* if its tenant is active and its lane is open, neither paused nor held. Whether
a lane is open is kept where an index sees it (`models.live`), so that those that are closed cost nobody a probe; that is at
most a beat of the clock old, and looked at again here.

Aliases: `s` a send, `b` a blast, `h` its hint, `l` a lane with something due, `x` what is known of a lane.
"""

from __future__ import annotations

#: The time as an index can be asked for it. Bare, the function counts as one that changes from row to row, and every entry of
#: the index is read and compared: all that is scheduled for the next months, each beat.
NOW = "(SELECT clock_timestamp())"

#: As all statements of one priority name it; those of a whole rail write the number instead.
PRIORITY = "%(priority)s"

#: Steps of one ring (those to tenants in `starved` not counted): bounds what has been closed since the last beat.
PROBES = 1000
#: Blasts of one tenant looked at for one batch, oldest first.
BLASTS = 20

SENDS, HINTS, LANES = "messaging_sends s", "messaging_blast_hints h", "messaging_due_lanes l"

#: Nothing but one trial at the end of a hold.
LANE_CLOSED = "(x.paused OR (x.hold_code <> '' AND x.held_until > clock_timestamp()))"
BLAST_HELD = "(b.hold_code <> '' AND b.held_until > clock_timestamp())"


def _on_rail(alias: str, priority: int | str) -> str:
    return f"{alias}.channel = %(channel)s AND {alias}.rail = %(rail)s AND {alias}.priority = {priority}"


def single_due(priority: int | str = PRIORITY) -> str:
    """Single sends of one priority that are due: the predicate of the partial index `messaging_sends_single_due`."""
    return f"{_on_rail('s', priority)} AND s.status = 'queued' AND s.blast_id IS NULL"


def of_running(priority: int | str = PRIORITY) -> str:
    """Hints of all running blasts of one priority."""
    return _on_rail("h", priority)


def hinted(priority: int | str = PRIORITY) -> str:
    """Hints of those of which something may go, as the clock has last seen it."""
    return f"{of_running(priority)} AND h.has_due"


#: Due sends of the blast row `b`, from its hint on.
QUEUED_OF_BLAST = """
    FROM messaging_sends s
    WHERE s.blast_id = b.id AND s.status = 'queued'
      AND s.id >= coalesce((SELECT h.low FROM messaging_blast_hints h WHERE h.blast_id = b.id),
                           '00000000-0000-0000-0000-000000000000')"""


def active(tenant: str) -> str:
    """A scalar, not a join: the planner must not be free to hash the tenants."""
    return f"(SELECT t.active FROM core_tenants t WHERE t.id = {tenant})"


def lane_of(tenant: str, priority: int | str = PRIORITY) -> str:
    return f"messaging_tenant_lanes x WHERE x.tenant_id = {tenant} AND {_on_rail('x', priority)}"


def singles_may_go(tenant: str, priority: int | str = PRIORITY) -> str:
    closed = f"SELECT {LANE_CLOSED} FROM {lane_of(tenant, priority)}"
    return f"({active(tenant)} AND NOT coalesce(({closed}), false))"


def may_go_alone() -> str:
    """Of a single send `s`, whatever its rail: its tenant is active and its lane is open."""
    lane = (
        "messaging_tenant_lanes x WHERE x.tenant_id = s.tenant_id AND x.channel = s.channel AND x.rail = s.rail"
        " AND x.priority = s.priority"
    )
    return f"({active('s.tenant_id')} AND NOT coalesce((SELECT {LANE_CLOSED} FROM {lane}), false))"


def open_blasts(tenant: str, priority: int | str = PRIORITY) -> str:
    """The tenant's blasts that may go, the oldest ones, for `QUEUED_OF_BLAST`."""
    return f"""
    SELECT b.id, b.hold_code <> '' AS held, b.isolated OR b.hold_code <> '' AS alone, b.party, b.suspects
    FROM {HINTS} JOIN messaging_blasts b ON b.id = h.blast_id
    WHERE {hinted(priority)} AND h.tenant_id = {tenant} AND b.state = 'running' AND NOT {BLAST_HELD}
    ORDER BY h.blast_id LIMIT {BLASTS}"""


def _bounds(alias: str, upto: str | None) -> str:
    return f" AND {alias}.tenant_id <= {upto}" if upto else ""


def _step(alias: str, starved: str | None) -> str:
    return (
        f"r.n + CASE WHEN {alias}.tenant_id IN (SELECT tenant_id FROM {starved}) THEN 0 ELSE 1 END"
        if starved
        else "r.n + 1"
    )


def singles_ring(
    name: str, *, after: str = "0", upto: str | None = None, priority: int | str = PRIORITY, starved: str | None = None
) -> str:
    """Tenants with due single sends and an open lane, ascending, where `hit`; each step skips in two indexes at once.

    The tenants with something due come from the ledger itself, and so what has run empty is not met; the open lanes come from
    `messaging_due_lanes`, and so those that are closed are not, however many of them lie between two steps.
    """
    return f"""{name} (tenant_id, hit, n) AS (
        SELECT {after}::bigint, false, 0
        UNION ALL
        SELECT CASE WHEN o.tenant_id = d.tenant_id THEN d.tenant_id ELSE o.tenant_id - 1 END, o.tenant_id = d.tenant_id,
               {_step("d", starved)}
        FROM {name} r
        CROSS JOIN LATERAL (
            SELECT s.tenant_id FROM {SENDS} WHERE {single_due(priority)} AND s.tenant_id > r.tenant_id{_bounds("s", upto)}
            ORDER BY s.tenant_id LIMIT 1
        ) d
        CROSS JOIN LATERAL (
            SELECT l.tenant_id FROM {LANES}
            WHERE {_on_rail("l", priority)} AND l.closed_until IS NULL AND l.tenant_id >= d.tenant_id
            ORDER BY l.tenant_id LIMIT 1
        ) o
        WHERE r.n < {PROBES}
    )"""


def blasts_ring(
    name: str, *, after: str = "0", upto: str | None = None, priority: int | str = PRIORITY, starved: str | None = None
) -> str:
    """Tenants with blasts of which something may go, ascending, where `hit`."""
    return f"""{name} (tenant_id, hit, n) AS (
        SELECT {after}::bigint, false, 0
        UNION ALL
        SELECT d.tenant_id, true, {_step("d", starved)}
        FROM {name} r
        CROSS JOIN LATERAL (
            SELECT h.tenant_id FROM {HINTS} WHERE {hinted(priority)} AND h.tenant_id > r.tenant_id{_bounds("h", upto)}
            ORDER BY h.tenant_id LIMIT 1
        ) d
        WHERE r.n < {PROBES}
    )"""


def due_ring(name: str, priority: int | str, most: int) -> str:
    """Tenants with due single sends, ascending, whether they may go or not."""
    return f"""{name} (tenant_id, n) AS (
        SELECT 0::bigint, 0
        UNION ALL
        SELECT d.tenant_id, r.n + 1
        FROM {name} r CROSS JOIN LATERAL (
            SELECT s.tenant_id FROM {SENDS} WHERE {single_due(priority)} AND s.tenant_id > r.tenant_id
            ORDER BY s.tenant_id LIMIT 1
        ) d
        WHERE r.n < {most}
    )"""


#: Batches of a provider's rail whose lease has run out: the worker vanished, or the next try is due.
LAPSED = """
FROM messaging_batches b JOIN core_processed_jobs j ON j.job_key = 'batch:' || b.id
WHERE b.channel = %(channel)s AND b.rail = %(rail)s AND b.provider = %(provider)s AND b.state IN ('claimed', 'unknown')
  AND j.done_at IS NULL AND j.lease_until <= clock_timestamp()
"""
