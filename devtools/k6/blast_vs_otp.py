"""A blast of a million from A, login codes of A and of B beside it, and two bursts of codes: at once, and as single calls."""

from __future__ import annotations

from devtools.k6 import judge
from devtools.k6.scene import RATE, UPLOAD_SECONDS, WARM_SECONDS, A, B, Measured, Run, find, open_scene

#: A little more than a million: some are gone before the measurement begins.
_BACKLOG = 1_010_000
#: Where in the run the burst at once is, as a share of it; the script's own comes at 0.7.
_BURST = 0.35


def profile(run: Run) -> Measured:
    seconds, codes = run.size(130, 6), run.size(300, 60)
    backlog = run.size(_BACKLOG, 20_000)
    traffic = open_scene(run)
    run.say(f"k6 uploads a blast of {backlog:,}")
    with traffic.script("blast-vs-otp", RECIPIENTS=backlog, SECONDS=WARM_SECONDS + seconds, CODES=codes) as script:
        script.begun(UPLOAD_SECONDS)
        run.wait(WARM_SECONDS)
        ahead = backlog - run.lab.stack.sandbox.stats()["emails_accepted"]
        run.say(f"measuring for {seconds} s")
        run.wait(seconds * _BURST)
        traffic.burst_at_once(B, codes)
        traffic.keep(script)
    found = find(traffic)
    at_once, over_http = [judge.burst_of(ids, found.evidence.sends) for ids in traffic.bursts]
    figures = found.figures
    return Measured(
        {
            "backlog at the start": ahead,
            "backlog at the end": backlog - figures.blast_sent,
            "measured": figures.elapsed,
            **judge.codes(found.evidence, traffic.steady(), (at_once, over_http), (A, B)),
            "burst in one submit_many, slowest": at_once.slowest * 1e3,
            "burst over single HTTP calls, slowest": over_http.slowest * 1e3,
            "the blast's share of what codes left": figures.share * 100,
            "mean fill": figures.fill,
            "429s": figures.too_many,
            **found.counts,
        },
        f"blast of {backlog:,}, {figures.elapsed:.0f} s, {RATE} requests/s, 50 ms, codes 2/s each of A and B, bursts of {codes}",
    )
