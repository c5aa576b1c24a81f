"""The provider answers 429 to everything for a while, in the middle of a blast and of login codes."""

from __future__ import annotations

import time

from devtools.k6 import judge
from devtools.k6.scene import RATE, WARM_SECONDS, Measured, Run, find, open_scene


def profile(run: Run) -> Measured:
    storm = run.size(20, 2)
    around = run.size(15, 4)
    seconds = WARM_SECONDS + around + storm + around
    backlog = round(seconds * RATE * 100) + 5_000  # never empty, were there no storm
    traffic = open_scene(run)
    run.say(f"429 for {storm} s, after {WARM_SECONDS + around:.0f} s of {seconds:.0f}")
    with traffic.script(
        "rate-storm", RECIPIENTS=backlog, SECONDS=seconds, BEFORE=WARM_SECONDS + around, STORM=storm
    ) as script:
        traffic.keep(script)
        until = time.time()
        (over,) = (record["storm_ends"] for record in script.records() if "storm_ends" in record)
    found = find(traffic)
    # An acceptance counts one attempt. A send that has more had one counted for a refusal.
    ((counted,),) = run.lab.sql("SELECT count(*) FROM messaging_sends WHERE attempts > 1")
    return Measured(
        {
            "429s": found.figures.too_many,
            "attempts counted for a 429": counted,
            "full rate again after": judge.recovered_after(
                sorted(found.evidence.accepting.values()), over, until, RATE
            ),
            **found.counts,
        },
        f"blast of {backlog:,} and 4 codes/s, {RATE} requests/s, 50 ms; 429 with Retry-After 1 for {storm} s",
    )
