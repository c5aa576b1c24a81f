"""A blast of a million from A, login codes of A and of B beside it, and two bursts of codes in the middle."""

from __future__ import annotations

from devtools.profiles import judge
from devtools.profiles.scene import (
    RATE,
    WARM_SECONDS,
    A,
    B,
    Measured,
    Run,
    burst_at_once,
    burst_over_http,
    find,
    open_scene,
    plan,
)

#: A little more than a million: some are gone before the measurement begins.
_BACKLOG = 1_010_000
#: Where in the run the bursts are, as shares of it.
_FIRST, _SECOND = 0.4, 0.7


def profile(run: Run) -> Measured:
    seconds, codes = run.size(130, 6), run.size(300, 60)
    backlog = run.size(_BACKLOG, 20_000)
    traffic = open_scene(run)
    blast = plan(run, backlog)
    run.lab.ready()
    traffic.load.start()
    try:
        run.lab.inside.call("launch", blast_ids=[blast])
        run.wait(WARM_SECONDS)
        ahead = backlog - run.lab.stack.sandbox.stats()["emails_accepted"]
        run.say(f"measuring for {seconds} s")
        run.wait(seconds * _FIRST)
        at_once = burst_at_once(run, traffic, B, codes)
        run.wait(seconds * (_SECOND - _FIRST))
        over_http = burst_over_http(traffic, A, codes)
        run.wait(seconds * (1 - _SECOND))
    finally:
        traffic.load.stop()
    run.lab.inside.call("cancel", blast_ids=[blast])
    found = find(run, traffic.load.posted(), traffic.submitted)
    bursts = [judge.burst_of(ids, found.evidence.sends) for ids in (at_once, over_http)]
    figures = found.figures
    return Measured(
        {
            "backlog at the start": ahead,
            "backlog at the end": backlog - figures.blast_sent,
            "measured": figures.elapsed,
            **judge.codes(found.evidence, traffic.steady(), bursts, (A, B)),
            "burst in one submit_many, slowest": bursts[0].slowest * 1e3,
            "burst over single HTTP calls, slowest": bursts[1].slowest * 1e3,
            "the blast's share of what codes left": figures.share * 100,
            "mean fill": figures.fill,
            "429s": figures.too_many,
            **found.counts,
        },
        f"blast of {backlog:,}, {figures.elapsed:.0f} s, {RATE} requests/s, 50 ms, codes 2/s each of A and B, bursts of {codes}",
    )
