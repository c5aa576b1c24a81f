"""A submits tens of thousands of product e-mails, which share the transactional rail with everybody's login codes."""

from __future__ import annotations

from devtools.profiles import judge
from devtools.profiles.scene import RATE, WARM_SECONDS, A, B, Measured, Run, drain, find, open_scene


def profile(run: Run) -> Measured:
    flood = run.size(50_000, 3_000)
    traffic = open_scene(run)
    run.lab.ready()
    traffic.load.start()
    try:
        run.wait(WARM_SECONDS)
        run.say(f"A submits {flood:,} product e-mails")
        ids = run.lab.inside.call("submit", slug=A, sends=flood, category="product")
        traffic.submitted |= dict.fromkeys(ids, A)
        run.wait(flood / (RATE * 100))  # what the whole limit needs for them; the codes take their part of it
    finally:
        traffic.load.stop()
    drain(run, 60 + flood / (RATE * 50))
    found = find(run, traffic.load.posted(), traffic.submitted)
    product = set(ids)
    fills = [len(b.send_ids) for b in found.evidence.batches if not product.isdisjoint(b.send_ids)]
    return Measured(
        {
            **judge.codes(found.evidence, traffic.steady(), (), (A, B)),
            "mean fill": sum(fills) / len(fills),
            "429s": found.figures.too_many,
            **found.counts,
        },
        f"{flood:,} product e-mails of A, codes 2/s each of A and B, {RATE} requests/s, 50 ms",
    )
