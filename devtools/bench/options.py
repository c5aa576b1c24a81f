"""The command line, shared by `python -m devtools.bench` and `manage.py bench`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devtools.processes import CHECKOUT

DESCRIPTION = """\
What the system does per second, and what a part of it costs, in numbers.

Starts PostgreSQL, Redis, web, workers, the clock, and a provider on this machine as
processes, with a database of their own, and measures section by section:

  engine         e-mails/s with an unlimited provider: planned, claimed, sent, recorded
  steps          what a batch of 100 costs, step by step, on a ledger with a million queued
  planning       rows/s and peak memory of planning a blast from a CSV file
  small_tenants  1,000 tenants x 5 e-mails at 10 requests/s, against the physical minimum
  pickup         submit to request on an idle system, one login code at a time
  governor       decisions/s and latency with 10 to 100,000 tenants
  limit          use of a limit of 10 requests/s, and 429s, beside login codes
  fairness       Jain's index of tenants with very different backlogs; a newcomer's wait
"""

EPILOG = """\
examples
  everything, some 20 minutes; a table for docs/performance.md:
      python -m devtools.bench --markdown
  two sections, and one JSON object a line for each figure:
      python -m devtools.bench --only engine,steps --json bench.jsonl
  a smoke of everything with small numbers: counts are checked, times mean nothing:
      python -m devtools.bench --quick

exit code
  0    everything ran, whatever the figures say
  1    something was lost, doubled or not sent; or a goal was missed, with --strict
  2    it could not run
  130  interrupted; everything that was started has been stopped
"""

SECTIONS = ("engine", "steps", "planning", "small_tenants", "pickup", "governor", "limit", "fairness")
_CONFIGURATION = re.compile(r"([1-9]\d?)x([1-9]\d?)")


@dataclass(frozen=True, slots=True)
class Options:
    only: tuple[str, ...] = SECTIONS
    quick: bool = False
    sends: int = 200_000  # of the engine's blast
    workers: tuple[tuple[int, int], ...] = ((1, 8), (2, 4), (2, 8), (3, 4))  # processes x threads that the engine tries
    seconds: float = 300.0  # of each limit run
    json: Path | None = None
    markdown: bool = False
    strict: bool = False
    data_dir: Path = CHECKOUT / ".dev" / "bench"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--only", type=_sections, metavar="A,B", help=f"sections, of {', '.join(SECTIONS)}")
    add("--quick", action="store_true", help="small numbers: does every section run, and do its counts add up?")
    add("--sends", type=int, metavar="N", help=f"e-mails of the engine's blast (default {Options().sends:,})")
    add(
        "--workers",
        type=_workers,
        metavar="PxT,…",
        help="worker processes x threads that the engine tries (default 1x8,2x4,2x8,3x4); the best is the figure",
    )
    add("--seconds", type=float, metavar="S", help="of each of the two limit runs (default 300)")
    add("--json", type=Path, metavar="FILE", help="one JSON object a line: the run, then each figure")
    add("--markdown", action="store_true", help="print the table as docs/performance.md has it")
    add("--strict", action="store_true", help="exit with 1 if a goal is missed")
    add("--data-dir", type=Path, default=Options().data_dir, metavar="DIR", help="logs (default .dev/bench)")


def options_from(values: dict[str, Any]) -> Options:
    given = {name: value for name, value in values.items() if name in Options.__slots__ and value is not None}
    if values.get("quick"):
        given = {"sends": 3_000, "workers": ((1, 8),), "seconds": 3.0} | given
    return Options(**given)


def parse(argv: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m devtools.bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    return options_from(vars(parser.parse_args(argv)))


def _sections(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in names if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    return tuple(section for section in SECTIONS if section in names)


def _workers(text: str) -> tuple[tuple[int, int], ...]:
    found = [_CONFIGURATION.fullmatch(part.strip()) for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r}: processes x threads, such as 2x8 or 1x8,2x4")
    return tuple((int(match[1]), int(match[2])) for match in found if match)
