"""The provider answers 429 to everything for a while, in the middle of a blast and of login codes."""

from __future__ import annotations

import time

from devtools.profiles import judge
from devtools.profiles.scene import RATE, WARM_SECONDS, Measured, Run, find, open_scene, plan


def profile(run: Run) -> Measured:
    storm = run.size(20, 2)
    around = run.size(15, 4)
    backlog = round((WARM_SECONDS + 3 * around) * RATE * 100) + 5_000
    traffic = open_scene(run)
    blast = plan(run, backlog)
    run.lab.ready()
    traffic.load.start()
    try:
        run.lab.inside.call("launch", blast_ids=[blast])
        run.wait(WARM_SECONDS + around)
        run.lab.stack.sandbox.fault("429", seconds=storm, retry_after=1)
        over = time.time() + storm
        run.say(f"429 for {storm} s")
        run.wait(storm + around)
        until = time.time()
    finally:
        traffic.load.stop()
    run.lab.inside.call("cancel", blast_ids=[blast])
    found = find(run, traffic.load.posted())
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
