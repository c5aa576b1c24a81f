"""`manage.py redrive`: send again what failed, or what was left ambiguous."""

from __future__ import annotations

import getpass
import sys
import time
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from core.models import Tenant
from messaging.domain.errors import MessagingError
from messaging.services.redrive import Redriven, Verdict, redrive

#: Seconds between two lines of progress.
_QUIET = 2.0

_DESCRIPTION = """
Send again what failed for good (it has a dead letter), or what was left ambiguous: the same send with the same content, as a
new attempt in a new batch. Without --yes nothing is changed: it says what would be done.

A failed send was not sent, so this is safe. An AMBIGUOUS send may have been sent: nobody can tell. It is left alone unless
you say --accept-duplicates; then the recipient may get it twice, and the ledger keeps your name (--by) beside it.

Repeating the command is safe: a send that is on its way, was sent, was cancelled or has expired is left as it is. So
is stopping it in the middle.
"""

_EPILOG = """
examples:
  what failed, and why?       the admin, "Dead letters"; or SELECT reason, count(*) FROM core_dead_letters GROUP BY 1;
  look first:                 manage.py redrive --reason attempts_exhausted
  do it:                      manage.py redrive --reason attempts_exhausted --yes
  one blast:                  manage.py redrive --blast 0198c5a4-… --yes
  some sends:                 manage.py redrive 0198c5a4-… 0198c5a5-… --yes
  ids from a file:            manage.py redrive --ids failed.txt --yes        (- reads standard input)
  an ambiguous send, though it may arrive twice:
                              manage.py redrive 0198c5a4-… --accept-duplicates --by ada --yes
"""

_WORDS = {
    Verdict.UNKNOWN: "unknown: there is no such send (of this tenant)",
    Verdict.WAITING: "on their way already",
    Verdict.SENT: "sent: nothing to do",
    Verdict.CANCELLED: "cancelled, or their blast was: not sent again",
    Verdict.EXPIRED: "expired: too late to be sent",
    Verdict.NEEDS_ACCEPTANCE: "ambiguous: they may have been sent; to send them again say --accept-duplicates",
}


class Command(BaseCommand):
    help = _DESCRIPTION

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, epilog=_EPILOG, formatter_class=RawDescriptionHelpFormatter, **kwargs
        )

    def add_arguments(self, parser: CommandParser) -> None:
        which = parser.add_argument_group("which (one of these)")
        which.add_argument("send_ids", nargs="*", metavar="ID", help="ids of sends")
        which.add_argument("--ids", metavar="FILE", help="a file with an id on each line; - reads standard input")
        which.add_argument("--blast", type=UUID, metavar="ID", help="what failed of a blast")
        which.add_argument("--reason", metavar="CODE", help="what failed for this reason, such as attempts_exhausted")
        parser.add_argument("--tenant", metavar="SLUG", help="only this tenant's sends")
        parser.add_argument(
            "--accept-duplicates", action="store_true", help="ambiguous sends, too: they may arrive twice"
        )
        parser.add_argument("--by", metavar="NAME", help="who decides; kept with each send (default: you, %(default)s)")
        parser.set_defaults(by=_user())
        parser.add_argument("--yes", action="store_true", help="do it; without it nothing is changed")

    def handle(self, *args: Any, **options: Any) -> None:
        given = {
            "send_ids": [_uuid(text) for text in options["send_ids"]] or None,
            "blast": options["blast"],
            "reason": options["reason"],
        }
        if options["ids"]:
            if given["send_ids"]:
                raise CommandError("Give ids, or a file with ids, not both.")
            given["send_ids"] = _read(options["ids"])
        if not options["by"].strip():
            raise CommandError("Say who decides: --by NAME.")
        try:
            done = redrive(
                **given,
                tenant=self._tenant(options["tenant"]),
                by=options["by"],
                accept_duplicates_by=options["by"] if options["accept_duplicates"] else "",
                dry_run=not options["yes"],
                progress=self._progress(),
            )
        except MessagingError as error:
            raise CommandError(f"{error.message} See: manage.py redrive --help [{error.code}]") from None
        except DatabaseError as error:
            raise CommandError(
                f"The database refused or is not there ({type(error).__name__}). What was redriven until now stays so;"
                " the same command does the rest."
            ) from None
        self._report(done, dry_run=not options["yes"])

    def _tenant(self, slug: str | None) -> Tenant | None:
        if slug is None:
            return None
        tenant = Tenant.objects.filter(slug=slug).first()
        if tenant is None:
            raise CommandError("There is no tenant with this slug. Tenants are listed in the admin.")
        return tenant

    def _progress(self) -> Any:
        shown_at = time.monotonic()

        def show(done: Redriven) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at >= _QUIET:
                shown_at = time.monotonic()
                self.stderr.write(f"{done.looked_at:,} looked at, {done.moved:,} redriven", str)

        return show

    def _report(self, done: Redriven, *, dry_run: bool) -> None:
        sends = f"{done.moved:,} send{'' if done.moved == 1 else 's'}"
        if dry_run:
            hint = " Do it with --yes." if done.moved else ""
            self.stdout.write(f"{sends} would be sent again; nothing was changed.{hint}")
        else:
            self.stdout.write(f"{sends} queued again.")
        for verdict, count in sorted(done.refused.items()):
            self.stdout.write(f"{count:,} {_WORDS[verdict]} (such as {done.examples[verdict]})")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user on this machine, as in a container
        return ""


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise CommandError("That is not the id of a send, such as 0198c5a4-7d3e-7b11-9f60-0242ac120002.") from None


def _read(path: str) -> list[UUID]:
    try:
        lines = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read ({type(error).__name__}).") from None
    return [_uuid(line.strip()) for line in lines.splitlines() if line.strip()]
