"""What a batch of 100 costs, step by step, in one process, on a ledger with a million queued sends; and again after 200,000
claims under a snapshot that somebody keeps open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import psycopg

from devtools.bench import goals
from devtools.bench.figures import spread
from devtools.bench.goals import Figure, Goal
from devtools.bench.lab import Lab
from devtools.bench.options import Options

_WARM = 20  # batches that `watch.steps` serves before it counts
#: Steps inside of the claim's first transaction; what is left of it is its BEGIN, its COMMIT and the lists in between.
_IN_CLAIM = ("locks", "claim", "open")
_PREPARED = ("render", "encode", "ready")
_SHOWN = (
    "candidates", "governor", *_IN_CLAIM, "commit", "ticket", *_PREPARED, "request", "settle", "record", "rest", "batch",
)  # fmt: skip


def run(lab: Lab, options: Options) -> Iterator[Figure]:
    batches, queued, claims = (10, 5_000, 1_000) if options.quick else (300, 1_000_000, 200_000)
    real = (_WARM + batches) * 100
    lab.prepare(rate=0, latency_ms=0)
    lab.hold()
    try:
        parts = [["real", real - 1], ["filler", claims], ["real", real], ["filler", max(1, queued - claims - 2 * real)]]
        blast = lab.inside.call("blast", slug="steps", parts=parts, launched=True)
        lab.ready()
        ran = f"{batches} batches of 100 in one process, {queued:,} queued, p50 (p95 in the JSON)"
        done = lab.inside.call("steps", batches=batches)
        yield from _figures("", split(done["seconds"]), ran)
        yield Figure("steps", "tickets in vain", float(done["in_vain"]), f"beside {batches} batches", ran)
        with psycopg.connect(lab.stack.database_url) as old:
            old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            old.execute("SELECT count(*) FROM core_tenants")
            lab.inside.call("age", blast_id=blast, claims=claims)
            ran = f"{batches} batches of 100, after {claims:,} claims under an open snapshot"
            yield from _figures(
                " under a snapshot", split(lab.inside.call("steps", batches=batches)["seconds"]), ran, whole=False
            )
            old.rollback()
        lab.wait_recorded()
    finally:
        lab.discard()
        lab.release()


def split(taken: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Seconds of each step of each batch, in the order of a batch, adding up to "batch"."""
    found = {name: list(values) for name, values in taken.items()}
    claims = found.pop("whole claim")
    inner = [sum(values) for values in zip(*(found[name] for name in _IN_CLAIM), strict=True)]
    found["commit"] = [whole - parts for whole, parts in zip(claims, inner, strict=True)]
    found["candidates"] = [a + b for a, b in zip(found["candidates"], found.pop("replay"), strict=True)]
    known = [name for name in found if name != "batch"]
    found["rest"] = [
        whole - sum(parts) for whole, *parts in zip(found["batch"], *(found[name] for name in known), strict=True)
    ]
    return {name: found[name] for name in _SHOWN}


def _figures(when: str, taken: Mapping[str, Sequence[float]], ran: str, *, whole: bool = True) -> Iterator[Figure]:
    for name, values in taken.items():
        if whole or name in ("candidates", "claim", "record", "batch"):
            found = spread(values)
            more = {"p95": round(found.p95 * 1e3, 3), "p99": round(found.p99 * 1e3, 3)}
            yield Figure("steps", f"{name}{when}", found.p50 * 1e3, "ms", ran, more=more)
    claim: Goal = goals.CLAIM_MS
    yield Figure("steps", f"claim{when}, p95", spread(taken["claim"]).p95 * 1e3, "ms", ran, claim)
    if whole:
        rate = 100 / spread(taken["batch"]).p50
        yield Figure("steps", "one process, one thread", rate, "e-mails/s", "100 ÷ the p50 of a batch")
