"""`manage.py audit`: does the ledger add up?"""

from __future__ import annotations

import json
import sys
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from messaging.audit import Report, audit
from messaging.audit.provider_log import LogError
from messaging.audit.report import MEANINGS, NOTICES
from messaging.telemetry.audits import remember

#: Seconds between two lines of progress.
_QUIET = 2.0
_CANNOT = 2  # exit code: nothing can be said

_DESCRIPTION = """
Compare the ledger with itself, and with a provider's log of what it accepted: sends and the batches that hold them, batches
and their jobs, failed sends and dead letters, blasts and their counts. It changes nothing, looks at 5,000 sends at a time by
their keys, and may run beside full traffic: each comparison is one snapshot, and what looks wrong is looked at twice.

Exit code 0: it adds up. 1: there are differences. 2: it could not be told (the database is away, the log is unreadable).
Notices do not change the exit code: they happen while a provider is away, or an answer is awaited.
"""

_EPILOG = """
examples:
  manage.py audit                         everything
  manage.py audit --hours 24              sends, batches and blasts of the last day: what a nightly run needs
  manage.py audit --json                  for a machine
  manage.py audit --provider-log log.ndjson
      lines {"send": "<send id>", "id": "<the provider's id>", "at": <seconds since 1970, may be missing>}
  manage.py sandbox_log > log.ndjson      such a log, of the sandbox

What to do with a difference: docs/reliability.md. The last result stays in Redis, for metrics.
"""


class Command(BaseCommand):
    help = _DESCRIPTION

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, epilog=_EPILOG, formatter_class=RawDescriptionHelpFormatter, **kwargs
        )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--hours", type=float, metavar="N", help="only what was made in the last N hours")
        parser.add_argument("--provider-log", metavar="FILE", help="what the provider accepted; - reads standard input")
        parser.add_argument(
            "--limit", type=int, default=20, help="differences of each kind that are listed (%(default)s)"
        )
        parser.add_argument("--json", action="store_true", help="one JSON object instead of text")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["hours"] is not None and not options["hours"] > 0:
            raise CommandError("--hours must be above 0.", returncode=_CANNOT)
        try:
            with _opened(options["provider_log"]) as log:
                report = audit(hours=options["hours"], log=log, limit=options["limit"], progress=self._progress())
        except LogError as error:
            raise CommandError(str(error), returncode=_CANNOT) from None
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"The log cannot be read ({type(error).__name__}).", returncode=_CANNOT) from None
        except DatabaseError as error:
            raise CommandError(
                f"The database refused or is not there ({type(error).__name__}).", returncode=_CANNOT
            ) from None
        try:
            remember(differences=report.differences, notices=report.notices, seconds=report.seconds)
        except redis.RedisError as error:
            self.stderr.write(f"The result is not kept for metrics: Redis is away ({type(error).__name__}).")
        self.stdout.write(json.dumps(report.as_json()) if options["json"] else _text(report))
        if report.differences:
            sys.exit(1)

    def _progress(self) -> Any:
        shown_at = time.monotonic()

        def show(name: str, count: int) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at >= _QUIET:
                shown_at = time.monotonic()
                self.stderr.write(f"{name}: {count:,}", str)

        return show


@contextmanager
def _opened(path: str | None) -> Iterator[Any]:
    if path is None:
        yield None
    elif path == "-":
        yield sys.stdin
    else:
        with Path(path).open(encoding="utf-8") as file:
            yield file


def _text(report: Report) -> str:
    lines = []
    for what, meaning in MEANINGS.items():
        if what in report.found:
            kind = "notice" if what in NOTICES else "difference"
            lines.append(f"{kind} {what}, {report.found[what]:,} times: {meaning}")
            shown = [e for e in report.examples if e.what == what]
            lines += [f"  {e.id}  {e.detail}".rstrip() for e in shown]
            if (more := report.found[what] - len(shown)) > 0:
                lines.append(f"  … and {more:,} more (--limit)")
    looked = ", ".join(f"{n:,} {name}" for name, n in report.checked.items()) or "nothing"
    verdict = f"{report.differences:,} differences" if report.differences else "It adds up"
    lines.append(f"{verdict}. Looked at {looked} in {report.seconds:.1f} s.")
    return "\n".join(lines)
