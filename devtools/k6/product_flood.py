"""A submits tens of thousands of product e-mails, which share the transactional rail with everybody's login codes: half of them
as one list over HTTP, half as single sends, which are in one lane with A's own codes."""

from __future__ import annotations

from devtools.k6 import judge
from devtools.k6.scene import RATE, UPLOAD_SECONDS, WARM_SECONDS, A, B, Measured, Run, find, open_scene


def profile(run: Run) -> Measured:
    flood = run.size(50_000, 3_000)
    # Half of the time that A's share of the limit needs for them.
    seconds = WARM_SECONDS + flood / (RATE * 100)
    traffic = open_scene(run)
    with traffic.script("product-flood", RECIPIENTS=flood // 2, SECONDS=seconds, BEFORE=WARM_SECONDS) as script:
        script.begun(UPLOAD_SECONDS)
        run.wait(WARM_SECONDS)
        run.say(f"A submits {flood:,} product e-mails")
        traffic.submit(A, flood // 2, "product")
        traffic.keep(script)
    run.lab.wait_sent(flood + len(traffic.steady()), 60 + flood / (RATE * 50))
    found = find(traffic)
    product = {send.id for send in found.evidence.sends if send.category == "product"}
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
