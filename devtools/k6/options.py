"""The command line of `python -m devtools.k6`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devtools.k6.conditions import PROFILES
from devtools.processes import CHECKOUT

DESCRIPTION = """\
Does the promise hold under load? Six kinds of traffic, each on the whole system
(PostgreSQL, Redis, web, workers of both rails, clock, a provider with a limit), judged
by the ledger's own times and by the provider's log. What goes over HTTP is sent by k6,
by the scripts in the folder k6.

  blast-vs-otp   a blast of a million from A; login codes of A and of B at 2/s each; a
                 burst of 300 in one submit_many and one over HTTP; 130 s
  otp-burst      bursts of 300 codes on an idle system
  small-tenants  1,000 tenants with 5 e-mails each
  rate-storm     429 for 20 s in the middle of a blast
  newcomer       new tenants while a blast of a million runs
  product-flood  50,000 product e-mails of A (a list, and single ones), and codes of A and of B
"""

EPILOG = """\
examples
  all of them, some twelve minutes:
      python -m devtools.k6
  one, or all with small numbers (counts are judged, times are not):
      python -m devtools.k6 --only blast-vs-otp
      python -m devtools.k6 --short

exit code
  0    every condition is met
  1    one is missed: the table says which
  2    it could not run
  130  interrupted; everything that was started has been stopped
"""


@dataclass(frozen=True, slots=True)
class Options:
    only: tuple[str, ...] = PROFILES
    short: bool = False
    results: Path = CHECKOUT / "k6" / "results"
    data_dir: Path = CHECKOUT / ".dev" / "k6"


def parse(argv: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m devtools.k6",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Options()
    add = parser.add_argument
    add("--only", type=_profiles, default=PROFILES, metavar="A,B", help=f"of {', '.join(PROFILES)}")
    add("--short", action="store_true", help="small numbers, a few seconds each: only counts are judged")
    add(
        "--results",
        type=Path,
        default=usual.results,
        metavar="DIR",
        help="JSON lines, and k6's summaries, go here (default k6/results)",
    )
    add("--data-dir", type=Path, default=usual.data_dir, metavar="DIR", help="logs (default .dev/k6)")
    return Options(**vars(parser.parse_args(argv)))


def _profiles(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in PROFILES]:
        raise argparse.ArgumentTypeError(f"no profile {unknown[0]!r}; there are {', '.join(PROFILES)}")
    return tuple(profile for profile in PROFILES if profile in names)
