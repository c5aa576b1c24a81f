"""Bursts of login codes on an idle system, one after the other: at once, and as single HTTP calls."""

from __future__ import annotations

from devtools.profiles import judge
from devtools.profiles.scene import RATE, A, B, Measured, Run, burst_at_once, burst_over_http, drain, find, open_scene


def profile(run: Run) -> Measured:
    rounds, codes = run.size(5, 1), run.size(300, 60)
    traffic = open_scene(run)
    run.lab.ready()
    at_once, over_http = [], []
    try:
        for _ in range(rounds):
            at_once.append(burst_at_once(run, traffic, B, codes))
            drain(run)
            run.wait(2.0)  # the bucket is full again
            over_http.append(burst_over_http(traffic, A, codes))
            drain(run)
            run.wait(2.0)
    finally:
        traffic.load.stop()
    found = find(run, traffic.load.posted(), traffic.submitted)
    sends = found.evidence.sends
    requests = [sum(not ids.isdisjoint(batch.send_ids) for batch in found.evidence.batches) for ids in at_once]
    return Measured(
        {
            "burst in one submit_many, slowest": max(judge.burst_of(ids, sends).slowest for ids in at_once) * 1e3,
            "burst over single HTTP calls, slowest": max(judge.burst_of(i, sends).slowest for i in over_http) * 1e3,
            "requests of a submit_many": max(requests),
            "429s": found.figures.too_many,
            **found.counts,
        },
        f"{rounds} + {rounds} bursts of {codes} codes, nothing else, {RATE} requests/s, 50 ms",
    )
