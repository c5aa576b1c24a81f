"""Planning a blast from a CSV file: rows a second and the peak of memory, each size in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from devtools.bench import goals
from devtools.bench.goals import Figure
from devtools.bench.lab import BenchFailed, Lab
from devtools.bench.options import Options

_SLUG = "planner"


def run(lab: Lab, options: Options) -> Iterator[Figure]:
    for rows in (1_000, 3_000) if options.quick else (10_000, 100_000, 1_000_000):
        lab.prepare(rate=10)
        lab.hold()  # what was planned is not sent meanwhile: that would be another measurement
        try:
            lab.inside.call("tenant", slug=_SLUG)
            path = lab.stack.data_dir / f"{rows}.csv"
            write_list(path, rows)
            done = json.loads(lab.stack.python("-m", "devtools.bench.inside", "plan", _SLUG, str(path)))
        finally:
            lab.discard()
            lab.release()
        path.unlink()
        if done["planned"] != rows:
            raise BenchFailed(f"{done['planned']:,} of {rows:,} rows were planned.")
        ran = f"CSV of {rows:,} rows, two variables, to the launch"
        largest = rows == 1_000_000
        yield Figure("planning", f"{rows:,} rows", rows / done["seconds"], "rows/s", ran, goals.PLANNING)
        yield Figure(
            "planning",
            f"{rows:,} rows, peak memory",
            done["peak_mib"],
            "MiB",
            f"{ran}; VmHWM of the process, {done['before_mib']:.0f} before it began",
            goals.PLANNING_MIB if largest or options.quick else None,
        )


def write_list(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("to,first_name,code\n")
        file.writelines(f"customer{number}@inbox.example,Ada,SPRING-{number}\n" for number in range(rows))
