"""The command line, shared by `python -m devtools.demo` and `manage.py demo`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devtools.processes import CHECKOUT

DESCRIPTION = """\
A blast and login codes at once, on the whole system, in numbers.

Starts PostgreSQL, Redis, web, a worker for each rail, the clock, and a provider on
this machine that answers as Resend does (10 requests a second, 50 ms): all of them
processes on free ports, with a database of their own. Acme plans a blast from a CSV
file; while it is sent, Acme and Bistro send two login codes a second each through the
HTTP API. At the end: how long the codes took from submit to acceptance, what the blast
got of the requests that the codes left over, and whether anything was lost, sent twice,
refused or on the wrong rail (the provider's log against the ledger). The same, with
charts over time, is in demo-report.html.
"""

EPILOG = """\
examples
  the demo, some 70 seconds:
      python -m devtools.demo
  a shorter one, some 20 seconds, for CI:
      python -m devtools.demo --short
  five times the limit; the figures as JSON too:
      python -m devtools.demo --rate 50 --recipients 200000 --json figures.json
  leave it running afterwards, with admin and inbox to look around in:
      python -m devtools.demo --keep

exit code
  0    everything as it should be
  1    a send was lost, doubled, refused or on the wrong rail, or codes took more than
       1 s (p99), or the blast got less than 80 % of what was left over; each in words
  2    it could not run: a process did not start, or died
  130  interrupted; everything that was started has been stopped

The logs of the last run are in .dev/demo/logs. But for them and the report, nothing of
it stays.
"""

RECIPIENTS = 30_000
SHORT_RECIPIENTS = 5_000
#: Two tenants, each so many a second.
OTPS_PER_SECOND = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    recipients: int = RECIPIENTS
    rate: int = 10  # requests per second that the provider takes
    json: Path | None = None
    report: Path = Path("demo-report.html")
    keep: bool = False
    data_dir: Path = CHECKOUT / ".dev" / "demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--short", action="store_true", help=f"{SHORT_RECIPIENTS:,} recipients, some ten seconds of codes; same checks")
    add(
        "--recipients",
        type=_whole(100, 5_000_000),
        metavar="N",
        help=f"rows of the blast's list (default {RECIPIENTS:,})",
    )
    add(
        "--rate",
        type=_whole(6, 1_000),
        default=10,
        metavar="N",
        help="the provider's limit in requests per second, 6 or more: the codes need 4 (default %(default)s)",
    )
    add("--json", type=_file, metavar="FILE", help="write the figures, and what failed, to this file")
    add(
        "--report",
        type=_file,
        default=Options().report,
        metavar="FILE",
        help="the page that shows what happened (default %(default)s, in the current folder)",
    )
    add("--keep", action="store_true", help="leave everything running after the run, and say where; Ctrl-C ends it")
    add(
        "--data-dir",
        type=Path,
        default=Options().data_dir,
        metavar="DIR",
        help="logs, and the servers' data while it runs (default .dev/demo)",
    )


def options_from(values: dict[str, Any]) -> Options:
    recipients = values["recipients"] or (SHORT_RECIPIENTS if values["short"] else RECIPIENTS)
    named = {name: values[name] for name in ("rate", "json", "report", "keep", "data_dir") if name in values}
    return Options(recipients=recipients, **named)


def parse(argv: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m devtools.demo",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    return options_from(vars(parser.parse_args(argv)))


def _file(text: str) -> Path:
    """A file that can be written: found out before the run, not after it."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return path


def _whole(least: int, most: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        try:
            value = int(text.replace(",", "").replace("_", ""))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} must be between {least:,} and {most:,}")
        return value

    return whole_number
