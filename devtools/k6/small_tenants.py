"""A thousand tenants with five marketing e-mails each: the bench's section, and the counts of a profile."""

from __future__ import annotations

from devtools.bench import small_tenants
from devtools.bench.options import Options
from devtools.profiles.scene import Measured, Run, find


def profile(run: Run) -> Measured:
    figures = {figure.name: figure for figure in small_tenants.run(run.lab, Options(quick=run.short))}
    found = find(run)
    names = ("time ÷ physical minimum", "requests")
    return Measured(
        {**{name: figures[name].value for name in names}, "429s": found.figures.too_many, **found.counts},
        figures["time"].ran,
    )
