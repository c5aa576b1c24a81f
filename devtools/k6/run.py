"""The profiles, one after the other, and one table of what each reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich.console import Console

from devtools.bench import table
from devtools.bench.goals import Figure
from devtools.bench.lab import BenchFailed, Lab
from devtools.bench.run import FAILED, about, outcome, say
from devtools.k6 import blast_vs_otp, newcomer, otp_burst, product_flood, rate_storm, small_tenants
from devtools.k6.conditions import PROFILES, judged, missed, told
from devtools.k6.judge import NotMeasuredError
from devtools.k6.options import Options
from devtools.k6.program import program, version
from devtools.k6.scene import Measured, Run

RUNNERS: Mapping[str, Callable[[Run], Measured]] = {
    "blast-vs-otp": blast_vs_otp.profile,
    "otp-burst": otp_burst.profile,
    "small-tenants": small_tenants.profile,
    "rate-storm": rate_storm.profile,
    "newcomer": newcomer.profile,
    "product-flood": product_flood.profile,
}
assert tuple(RUNNERS) == PROFILES


def run(options: Options, console: Console | None = None) -> int:
    """The exit code (see `--help`)."""
    console = console or Console()
    figures: list[Figure] = []
    ran = about(["devtools.k6", *_arguments(options)])
    stamp = options.results.absolute() / time.strftime("%Y%m%d-%H%M%S")

    def all_of_them() -> None:
        k6 = program()
        ran["versions"] += f", k6 {version(k6)}"
        options.results.mkdir(parents=True, exist_ok=True)
        with Lab(options.data_dir) as lab:
            for name in options.only:
                run = Run(lab, options.short, lambda text: say(console, f"  … {text}"), k6, str(stamp))
                figures.extend(_one(name, run, console))

    code = outcome(all_of_them, "The profiles", options.data_dir, console)
    if figures:  # of those that ran, also if a later one did not
        say(console, "")
        table.show_all(shown := told(figures), console)
        say(
            console,
            f"{len(figures) - len(shown)} counts that must be 0 are 0: lost, doubled, on the wrong rail and so on.",
        )
        path = stamp.with_suffix(".jsonl")
        table.write_json(path, figures, ran)
        say(console, f"The same as JSON lines: {path}; beside it, k6's own summaries.")
    return code or (FAILED if missed(figures) else 0)


def _one(name: str, run: Run, console: Console) -> list[Figure]:
    say(console, f"{name}:")
    began = time.monotonic()
    try:
        measured = RUNNERS[name](run)
    except NotMeasuredError as error:
        raise BenchFailed(f"{name}: {error}") from error
    figures = list(judged(name, measured.values, measured.ran, short=run.short))
    for figure in told(figures):
        table.show(figure, console)
    say(console, f"  ({time.monotonic() - began:.0f} s)")
    return figures


def _arguments(options: Options) -> list[str]:
    said = ["--only", ",".join(options.only)] if options.only != PROFILES else []
    return [*said, *(["--short"] if options.short else [])]
