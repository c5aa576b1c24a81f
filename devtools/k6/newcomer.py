"""Tenants that nobody knew, one after the other, each with a small blast, while a blast of a million runs."""

from __future__ import annotations

from devtools.k6.judge import NotMeasuredError
from devtools.k6.scene import RATE, Measured, Run, find, many_tenants, open_scene

_PREFIX, _THEIRS = "newcomer", 50
_WAITS = """
SELECT extract(epoch FROM min(s.accepted_at) - min(s.created_at))::float8
FROM messaging_sends s JOIN core_tenants t ON t.id = s.tenant_id
WHERE t.slug LIKE %s GROUP BY t.id
"""


def profile(run: Run) -> Measured:
    count, queued = run.size(15, 2), run.size(1_010_000, 20_000)
    traffic = open_scene(run)
    run.say(f"k6 uploads a blast of {queued:,}")
    with (
        many_tenants(run, count, _PREFIX) as keys,
        traffic.script("newcomer", KEYS=str(keys), RECIPIENTS=queued, THEIRS=_THEIRS) as script,
    ):
        traffic.keep(script)
    found = find(traffic)
    waits = [wait for (wait,) in run.lab.sql(_WAITS, f"{_PREFIX}%") if wait is not None]
    if len(waits) != count:
        raise NotMeasuredError(f"{count - len(waits)} of {count} newcomers got nothing")
    return Measured(
        {"longest wait for the first batch": max(waits), "429s": found.figures.too_many, **found.counts},
        f"{count} tenants, one after the other, blasts of {_THEIRS}, while one of {queued:,} runs, {RATE} requests/s, 50 ms",
    )
