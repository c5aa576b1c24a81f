"""A thousand tenants with five marketing e-mails each, over HTTP while the workers stand still: requests are what is scarce, so
they must be shared, not spent one a tenant."""

from __future__ import annotations

from devtools.bench import small_tenants
from devtools.k6.scene import Measured, Run, find, many_tenants, open_scene


def profile(run: Run) -> Measured:
    tenants = run.size(1_000, 60)
    traffic = open_scene(run)

    def submit(each: int) -> None:
        with (
            many_tenants(run, tenants, "small") as keys,
            traffic.script("small-tenants", KEYS=str(keys), EACH=each) as script,
        ):
            traffic.keep(script)

    figures = {figure.name: figure for figure in small_tenants.measure(run.lab, tenants, submit)}
    found = find(traffic)
    names = ("time ÷ physical minimum", "requests")
    return Measured(
        {**{name: figures[name].value for name in names}, "429s": found.figures.too_many, **found.counts},
        figures["time"].ran,
    )
