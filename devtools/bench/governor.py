"""The governor alone: what a decision costs with many tenants in Redis, for few and for many candidates."""

from __future__ import annotations

from collections.abc import Iterator

from devtools.bench.figures import spread
from devtools.bench.goals import Figure
from devtools.bench.lab import Lab
from devtools.bench.options import Options


def run(lab: Lab, options: Options) -> Iterator[Figure]:
    decisions = 50 if options.quick else 5_000
    lab.prepare(rate=10)
    for tenants in (10, 1_000) if options.quick else (10, 1_000, 100_000):
        for candidates in (10, 100):
            if candidates > tenants:
                continue
            done = lab.inside.call("governor", tenants=tenants, candidates=candidates, decisions=decisions)
            acquire, settle, refused = (spread(done[name]) for name in ("acquire", "settle", "refused"))
            ran = f"{decisions:,} grants to {candidates} candidates, {tenants:,} tenants in the hash, one connection"
            yield Figure(
                "governor",
                f"{tenants:,} tenants, {candidates} candidates",
                decisions / sum(done["acquire"]),
                "decisions/s",
                ran,
                more={
                    "p50_ms": round(acquire.p50 * 1e3, 3),
                    "p99_ms": round(acquire.p99 * 1e3, 3),
                    "settle_p50_ms": round(settle.p50 * 1e3, 3),
                    "refused_p50_ms": round(refused.p50 * 1e3, 3),
                },
            )
            for name, value in (("p50", acquire.p50), ("p99", acquire.p99)):
                yield Figure(
                    "governor", f"{tenants:,} tenants, {candidates} candidates, {name}", value * 1e3, "ms", ran
                )
