"""Fairness at ten requests a second: what tenants with very different backlogs get in any ten seconds, and how long a tenant
that comes while others are busy waits for its first batch."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator

from devtools.bench import goals
from devtools.bench.figures import backlogs, fairness_windows, ran_out, spread
from devtools.bench.goals import Figure
from devtools.bench.lab import BenchFailed, Lab
from devtools.bench.options import Options

_RATE = 10
_PER_SECOND = _RATE * 100
_WINDOW = 10.0
#: How much more the largest backlog is than the smallest.
_APART = 100
_START_SECONDS = 1.0
#: Between two newcomers: longer than any of them should wait.
_PAUSE = 1.7
_NEWCOMERS, _THEIR_SENDS = 30, 50


def run(lab: Lab, options: Options) -> Iterator[Figure]:
    seconds = 2.0 if options.quick else 30.0
    for tenants in (10, 30) if options.quick else (10, 100, 1_000):
        yield _jain(lab, tenants, seconds, 1.0 if options.quick else _WINDOW)
    yield from newcomers(lab, 2 if options.quick else _NEWCOMERS, 10_000 if options.quick else 1_000_000)


def _jain(lab: Lab, tenants: int, seconds: float, window: float) -> Figure:
    lab.prepare(rate=_RATE)
    # The smallest outlasts the run at its fair share, so that all are backlogged through to the end.
    share = _PER_SECOND * (seconds + 2 * _START_SECONDS) / tenants
    sizes = backlogs(tenants, round(share * 1.2) + 5, round(share * 1.2 + 5) * (10 if tenants > 100 else _APART // 10))
    planned = lab.inside.call("blasts", sizes=sizes, prefix="fair")
    lab.ready()
    lab.inside.call("launch", blast_ids=list(planned.values()))
    started = time.time()
    time.sleep(_START_SECONDS + seconds)
    lab.inside.call("cancel", blast_ids=list(planned.values()))
    lab.wait_recorded()
    accepted: dict[str, list[float]] = defaultdict(list)
    for slug, at in lab.sql(
        "SELECT t.slug, extract(epoch FROM s.accepted_at)::float8 FROM messaging_sends s JOIN core_tenants t"
        " ON t.id = s.tenant_id WHERE s.accepted_at IS NOT NULL ORDER BY s.accepted_at"
    ):
        accepted[slug].append(at)
    by_tenant = {slug: accepted[slug] for slug in planned}
    until = ran_out(by_tenant, dict(zip(planned, sizes, strict=True)))
    found = list(
        fairness_windows(
            by_tenant, until, start=started + _START_SECONDS, end=started + _START_SECONDS + seconds, window=window
        )
    )
    if not found:
        raise BenchFailed("No window of the run had two backlogged tenants.")
    return Figure(
        "fairness",
        f"Jain's index, {tenants:,} tenants",
        min(found),
        "",
        f"the worst of {len(found)} windows of {window:g} s; backlogs from {min(sizes):,} to {max(sizes):,}, 10 requests/s",
        goals.JAIN,
        {"mean": round(sum(found) / len(found), 5)},
    )


def newcomers(lab: Lab, count: int, queued: int) -> Iterator[Figure]:
    """`count` tenants come, one after the other, while a blast with `queued` sends runs."""
    lab.prepare(rate=_RATE)
    real = round((_START_SECONDS + count * _PAUSE + 10) * _PER_SECOND)
    blast = lab.inside.call(
        "blast", slug="large", parts=[["real", real], ["filler", max(1, queued - real)]], launched=True
    )
    lab.ready()
    time.sleep(_START_SECONDS)
    ids = []
    for number in range(count):
        ids += lab.inside.call("submit", slug=f"newcomer{number}", sends=_THEIR_SENDS)
        time.sleep(_PAUSE)
    lab.inside.call("cancel", blast_ids=[blast])
    lab.wait_recorded()
    waits = [
        float(wait)
        for (wait,) in lab.sql(
            "SELECT min(extract(epoch FROM accepted_at - created_at))::float8 FROM messaging_sends"
            " WHERE id = ANY (%s::uuid[]) AND accepted_at IS NOT NULL GROUP BY tenant_id",
            ids,
        )
    ]
    if len(waits) != count:
        raise BenchFailed(f"{count - len(waits)} of {count} newcomers got nothing.")
    ran = f"{count} tenants, one after the other, {_THEIR_SENDS} sends each, while a blast of {queued:,} runs"
    yield Figure("fairness", "a newcomer's wait, longest", max(waits), "s", ran, goals.NEWCOMER)
    yield Figure("fairness", "a newcomer's wait, p50", spread(waits).p50, "s", ran)
