"""Tenants that nobody knew, while a blast of a million runs: the bench's section, and the counts of a profile."""

from __future__ import annotations

from devtools.bench import fairness
from devtools.profiles.scene import Measured, Run, find


def profile(run: Run) -> Measured:
    queued = run.size(1_000_000, 10_000)
    run.say(f"a blast of {queued:,} begins")
    longest, _ = fairness.newcomers(run.lab, run.size(15, 2), queued)
    found = find(run)
    return Measured(
        {"longest wait for the first batch": longest.value, "429s": found.figures.too_many, **found.counts},
        f"{longest.ran}, 10 requests/s, 50 ms",
    )
