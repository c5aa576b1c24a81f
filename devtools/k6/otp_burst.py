"""Bursts of login codes on an idle system, one after the other: at once, and as single HTTP calls."""

from __future__ import annotations

from devtools.k6 import judge
from devtools.k6.scene import RATE, B, Measured, Run, drain, find, open_scene

#: Until the bucket is full again.
_PAUSE_SECONDS = 2.0


def profile(run: Run) -> Measured:
    rounds, codes = run.size(5, 1), run.size(300, 60)
    traffic = open_scene(run)
    for _ in range(rounds):
        traffic.burst_at_once(B, codes)
        drain(run)
        run.wait(_PAUSE_SECONDS)
        with traffic.script("otp-burst", CODES=codes) as script:
            traffic.keep(script)
        drain(run)
        run.wait(_PAUSE_SECONDS)
    found = find(traffic)
    bursts = [judge.burst_of(ids, found.evidence.sends) for ids in traffic.bursts]
    requests = [
        sum(not ids.isdisjoint(batch.send_ids) for batch in found.evidence.batches) for ids in traffic.bursts[::2]
    ]
    return Measured(
        {
            "burst in one submit_many, slowest": max(burst.slowest for burst in bursts[::2]) * 1e3,
            "burst over single HTTP calls, slowest": max(burst.slowest for burst in bursts[1::2]) * 1e3,
            "requests of a submit_many": max(requests),
            "429s": found.figures.too_many,
            **found.counts,
        },
        f"{rounds} + {rounds} bursts of {codes} codes, nothing else, {RATE} requests/s, 50 ms",
    )
