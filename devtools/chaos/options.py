"""The command line of `python -m devtools.chaos`."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devtools.processes import CHECKOUT

IDEMPOTENT, AT_MOST_ONCE = "idempotent", "at-most-once"

DESCRIPTION = """\
Is anything lost or doubled when everything fails?

Starts PostgreSQL, Redis, web, two workers of each rail, the clock, and a provider on this
machine as processes, and sends through them: login codes and blasts of four tenants over
HTTP, product e-mails through the Python API, every submit repeated under its idempotency
key until it is answered. Meanwhile workers, clock, web, Redis and PostgreSQL are killed, a
worker is frozen past its lease, tickets are lost and doubled, and the provider fails in
every way it can. All of that is transient: at the end each send must be sent, once.
"""

EPILOG = """\
examples
  100,000 sends in five minutes or so:
      python -m devtools.chaos
  the same faults at the same moments again (what they meet is another matter):
      python -m devtools.chaos --seed 7
  a provider that cannot be asked and knows no idempotency keys: what it may or may not
  have taken ends ambiguous, is listed, and is never sent again:
      python -m devtools.chaos --confirmation at-most-once
  one minute, each kind of fault once:
      python -m devtools.chaos --minutes 1 --sends 6000

exit code
  0    every send was sent once
  1    something was lost, doubled, failed, refused, or is still open
  2    it could not run
  130  interrupted; everything that was started has been stopped
"""

#: Below that, the kinds of faults do not fit, and a frozen worker does not outlive its lease.
SHORTEST_MINUTES = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    seed: int
    minutes: float = 5.0
    sends: int = 100_000
    confirmation: str = IDEMPOTENT
    json: Path | None = None
    data_dir: Path = CHECKOUT / ".dev" / "chaos"

    @property
    def seconds(self) -> float:
        return self.minutes * 60


def parse(argv: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m devtools.chaos",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Options(0)
    add = parser.add_argument
    add("--seed", type=int, metavar="N", help="which faults when (default: a new one; it is printed)")
    add("--minutes", type=_minutes, default=usual.minutes, metavar="M", help="about so long (default 5, at least 1)")
    add("--sends", type=_sends, metavar="N", help="(default: 20,000 for each minute)")
    add(
        "--confirmation",
        choices=(IDEMPOTENT, AT_MOST_ONCE),
        default=usual.confirmation,
        help="what the provider offers when an answer was lost (default %(default)s)",
    )
    add("--json", type=Path, metavar="FILE", help="faults, recovery, counts and verdict go there")
    add("--data-dir", type=Path, default=usual.data_dir, metavar="DIR", help="logs (default .dev/chaos)")
    given = vars(parser.parse_args(argv))
    if given["seed"] is None:
        given["seed"] = secrets.randbelow(1_000_000)
    if given["sends"] is None:
        given["sends"] = round(20_000 * given["minutes"])
    return Options(**given)


def _minutes(text: str) -> float:
    minutes = float(text)
    if not SHORTEST_MINUTES <= minutes <= 60:
        raise argparse.ArgumentTypeError(f"between {SHORTEST_MINUTES:g} and 60")
    return minutes


def _sends(text: str) -> int:
    sends = int(text)
    if not 1_000 <= sends <= 2_000_000:
        raise argparse.ArgumentTypeError("between 1,000 and 2,000,000")
    return sends
