"""What waits on a rail: whether anything does, how much, for how long, at a bounded cost; what has failed or is ambiguous."""

from __future__ import annotations

from dataclasses import dataclass

from core.db.cursor import ledger_cursor
from messaging.domain.rails import PRIORITIES, Channel, Rail
from messaging.ledger.due import (
    HINTS,
    LAPSED,
    QUEUED_OF_BLAST,
    SENDS,
    active,
    blasts_ring,
    due_ring,
    of_running,
    open_blasts,
    single_due,
    singles_may_go,
    singles_ring,
)

#: Sends that are counted at most, and newest dead letters and ambiguous batches that are looked at.
MOST = 10_000
#: Running blasts with due sends that are looked at.
_BLASTS = 1_000
#: Reasons of dead letters that have a label of their own; all further ones are `other`.
REASONS = 20


def any_work(rail: Rail) -> str:
    """Something may go, or a batch must be taken up again. What is closed is no work."""
    rings = ", ".join(
        ring(f"{name}{p}", priority=p)
        for p in PRIORITIES[rail]
        for name, ring in (("s", singles_ring), ("b", blasts_ring))
    )
    singles = [f"(SELECT FROM s{p} r WHERE r.hit AND {singles_may_go('r.tenant_id', p)})" for p in PRIORITIES[rail]]
    blasts = [
        f"(SELECT FROM b{p} r CROSS JOIN LATERAL ({open_blasts('r.tenant_id', p)}) b"
        f" WHERE r.hit AND {active('r.tenant_id')})"
        for p in PRIORITIES[rail]
    ]
    return f"WITH RECURSIVE {rings} SELECT " + " OR ".join(
        f"EXISTS {found}" for found in [*singles, *blasts, f"(SELECT {LAPSED})"]
    )


_ANY_WORK = {rail: any_work(rail) for rail in Rail}


def has_work(provider: str, channel: Channel, rail: Rail) -> bool:
    """The rail has sends that may go, or a batch of its provider that must be taken up again."""
    with ledger_cursor() as sql:
        row = sql.one(_ANY_WORK[rail], {"provider": provider, "channel": channel, "rail": rail})
    return bool(row and row[0])


@dataclass(frozen=True, slots=True)
class RailFacts:
    depth: int  # due sends, counted up to MOST; tenants paused and held included
    oldest: float  # seconds; 0 if nothing is due


#: Tenants with something due that are looked at.
_TENANTS = 1_000


def _rail(priority: int) -> tuple[str, str, str, str]:
    due, ring = single_due(priority), f"s{priority}"
    # Every running blast has a hint, also one that is held.
    blasts = f"SELECT h.blast_id AS id FROM {HINTS} WHERE {of_running(priority)} LIMIT {_BLASTS}"
    return (
        due_ring(ring, priority, _TENANTS),
        f"SELECT 1 FROM {SENDS} WHERE {due}",
        f"SELECT 1 FROM ({blasts}) b CROSS JOIN LATERAL (SELECT 1 {QUEUED_OF_BLAST} LIMIT {MOST}) s",
        f"""SELECT f.not_before FROM {ring} r CROSS JOIN LATERAL (
                SELECT s.not_before FROM {SENDS} WHERE {due} AND s.tenant_id = r.tenant_id ORDER BY s.id LIMIT 1) f
            UNION ALL
            SELECT f.not_before FROM ({blasts}) b CROSS JOIN LATERAL (
                SELECT s.not_before {QUEUED_OF_BLAST} ORDER BY s.id LIMIT 1) f""",
    )


def statement(rail: Rail) -> str:
    """Depth and age of one rail. Its cost grows with nothing but the number of tenants and blasts (both bounded)."""
    rings, singles, blasts, firsts = zip(*(_rail(priority) for priority in PRIORITIES[rail]), strict=True)
    due, first = " UNION ALL ".join(singles + blasts), " UNION ALL ".join(firsts)
    return f"""
    WITH RECURSIVE {", ".join(rings)}
    SELECT (SELECT count(*) FROM ({due} LIMIT {MOST}) d),
           (SELECT extract(epoch FROM clock_timestamp() - min(f.not_before))::float8 FROM ({first}) f)
    """


_STATEMENTS = {rail: statement(rail) for rail in Rail}


def rail_facts(channel: Channel, rail: Rail) -> RailFacts:
    with ledger_cursor() as sql:
        row = sql.one(_STATEMENTS[rail], {"channel": channel, "rail": rail})
    assert row is not None
    return RailFacts(int(row[0]), max(0.0, row[1] or 0.0))


AMBIGUOUS = f"""
SELECT b.provider, count(*)
FROM (SELECT provider FROM messaging_batches WHERE state = 'ambiguous' ORDER BY id DESC LIMIT {MOST}) b GROUP BY b.provider
"""
DEAD_LETTERS = f"""
SELECT d.channel, d.reason, count(*)
FROM (SELECT channel, reason FROM core_dead_letters ORDER BY id DESC LIMIT {MOST}) d
GROUP BY d.channel, d.reason ORDER BY 3 DESC, 1, 2
"""


def ambiguous() -> dict[str, int]:
    """Ambiguous batches (requests) by provider, of the newest MOST."""
    with ledger_cursor() as sql:
        return dict(sql.all(AMBIGUOUS))


def dead_letters() -> dict[tuple[str, str], int]:
    """(channel, reason) → how many of the newest MOST. The REASONS most frequent ones; the rest is `other`."""
    with ledger_cursor() as sql:
        rows = sql.all(DEAD_LETTERS)
    found: dict[tuple[str, str], int] = {}
    for i, (channel, reason, n) in enumerate(rows):
        key = (channel, reason if i < REASONS else "other")
        found[key] = found.get(key, 0) + n
    return found
