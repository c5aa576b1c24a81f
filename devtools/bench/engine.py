"""The engine's ceiling: an unlimited provider, a limit that never binds, one blast, the full ledger, all workers.

Beside it, what the provider alone takes from a client that does nothing but send, in the same run on the same machine: the
ratio says how much of a second the system itself needs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from devtools.bench import goals
from devtools.bench.figures import overall_rate, steady_rate
from devtools.bench.goals import Figure
from devtools.bench.lab import Lab
from devtools.bench.options import Options
from devtools.sandbox.bench import _drive

_TENANT = "engine"
#: Far below what must be reached, so that a slow machine still gives a figure.
_SLOWEST = 500.0
_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Run:
    processes: int
    threads: int
    overall: float
    steady: float
    batches: int
    fill: float


def run(lab: Lab, options: Options) -> Iterator[Figure]:
    runs: list[Run] = []
    bare = 0.0
    for processes, threads in options.workers:
        lab.prepare(rate=0, latency_ms=0, marketing=processes, threads=threads)
        if not bare:
            bare = _bare(lab, max(20, options.sends // 100))
        runs.append(_run(lab, processes, threads, options.sends))
        done = runs[-1]
        yield Figure(
            "engine",
            f"{processes} × {threads} threads",
            done.overall,
            "e-mails/s",
            f"one blast of {options.sends:,}, provider unlimited, launch → last accepted",
            more={"steady": round(done.steady, 1), "batches": done.batches, "fill": round(done.fill, 2)},
        )
    best = max(runs, key=lambda found: found.overall)
    ran = f"{best.processes} processes × {best.threads} threads, {options.sends:,} e-mails of one blast, full ledger"
    yield Figure("engine", "accepted", best.overall, "e-mails/s", f"{ran}, launch → last accepted", goals.ENGINE)
    yield Figure("engine", "accepted, steady", best.steady, "e-mails/s", f"{ran}, without the first and last twentieth")
    yield Figure("engine", "batches", best.overall / best.fill, "requests/s", ran)
    yield Figure("engine", "mean fill", best.fill, "of 100", ran, goals.FILL)
    yield Figure(
        "engine",
        "provider alone",
        bare,
        "e-mails/s",
        f"a bare client, {_CONNECTIONS} connections, batches of 100 made beforehand, the same provider process",
    )
    yield Figure("engine", "accepted ÷ provider alone", best.overall / bare, "", ran)


def _bare(lab: Lab, requests: int) -> float:
    began = time.perf_counter()
    asyncio.run(_drive(lab.stack.sandbox.url, requests, 100, _CONNECTIONS))
    rate = requests * 100 / (time.perf_counter() - began)
    lab.stack.sandbox.reset()
    return rate


def _run(lab: Lab, processes: int, threads: int, sends: int) -> Run:
    blast = lab.inside.call("blast", slug=_TENANT, parts=[["real", sends - 1]])
    lab.ready()
    since = lab.inside.call("launch", blast_ids=[blast])
    lab.wait_sent(sends, 30 + sends / _SLOWEST)
    lab.audit(sends)
    moments = [at for (at,) in lab.sql("SELECT extract(epoch FROM accepted_at)::float8 FROM messaging_sends")]
    batches = lab.sql("SELECT count(*) FROM messaging_batches WHERE state = 'accepted'")[0][0]
    return Run(processes, threads, overall_rate(moments, since), steady_rate(moments), batches, sends / batches)
