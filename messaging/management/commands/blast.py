"""`manage.py blast`: plan a blast from a CSV file, watch it, resume it."""

from __future__ import annotations

import csv
import shlex
import sys
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from core.models import Tenant
from messaging.domain.errors import MessagingError
from messaging.domain.lifecycle import BlastState
from messaging.domain.rails import Category
from messaging.models import BlastReject
from messaging.planner import PlanResult, Progress, launch_blast, plan_blast, resume_planning
from messaging.planner.results import OnProgress

#: Rejected rows shown at the end; `--rejects` writes all of them.
_SHOWN = 10
#: Seconds between two lines of progress where no bar can be drawn.
_QUIET = 2.0
_INTERRUPTED = 130  # what a shell reports for Ctrl-C

_DESCRIPTION = """
Plan a blast: one message for each row of a CSV file, and send it.

The first line of the file names its columns. One is named to and holds the address; every other column is a variable
that subject, html and text may use. UTF-8, columns separated by commas:

    to,first_name,code
    ada@example.org,Ada,SPRING-1
    "Grace Hopper <grace@example.org>",Grace,SPRING-2

Rows that cannot be sent to are left out and listed with their line; an address that is there twice gets one message.
"""

_EPILOG = """
examples:
  manage.py blast --tenant acme --csv list.csv --from "Acme <news@acme.org>" \\
      --subject "{{ first_name }}, your code" --html spring.html --text spring.txt --name "Spring" --key spring-2030

  interrupted? Resume it with the same file, by the key (the same command again) or by its id:
  manage.py blast --tenant acme --resume 0198c5a4-… --csv list.csv

  look before it leaves:
  manage.py blast … --no-launch
  manage.py blast --tenant acme --launch 0198c5a4-…
"""


class Command(BaseCommand):
    help = _DESCRIPTION

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, epilog=_EPILOG, formatter_class=RawDescriptionHelpFormatter, **kwargs
        )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", required=True, metavar="SLUG", help="who sends")
        parser.add_argument("--csv", metavar="FILE", help="the recipients; - reads standard input")
        content = parser.add_argument_group("the message")
        content.add_argument("--from", dest="from_", metavar="ADDRESS", help='such as "Acme <news@acme.org>"')
        content.add_argument("--subject", metavar="TEXT", help="may use variables: {{ first_name }}")
        html = content.add_mutually_exclusive_group()
        html.add_argument("--html", metavar="FILE", help="file with the HTML body (Liquid)")
        html.add_argument("--html-text", metavar="HTML", help="the HTML body itself")
        content.add_argument("--text", metavar="FILE", help="file with the plain-text body (Liquid)")
        content.add_argument("--reply-to", action="append", metavar="ADDRESS", help="may be given several times")
        content.add_argument("--header", action="append", metavar="NAME:VALUE", help="may be given several times")
        blast = parser.add_argument_group("the blast")
        blast.add_argument(
            "--category",
            default=Category.MARKETING,
            choices=[c.value for c in Category],
            help="marketing, unless the operator allows the tenant's blasts more",
        )
        blast.add_argument("--name", default="", help="what operators will see it under")
        blast.add_argument("--key", help="idempotency key: the same command again resumes, and never sends twice")
        blast.add_argument("--not-before", metavar="TIME", help="such as 2030-01-31T09:00:00+01:00")
        blast.add_argument("--expires", metavar="TIME", help="what is not sent by then is not sent at all")
        blast.add_argument("--no-launch", action="store_true", help="plan only; nothing is sent before --launch")
        blast.add_argument("--rejects", metavar="FILE", help="write all rejected rows (line, code, reason) to this CSV")
        earlier = parser.add_mutually_exclusive_group()
        earlier.add_argument("--resume", metavar="ID", type=UUID, help="go on with an interrupted blast; needs --csv")
        earlier.add_argument("--launch", metavar="ID", type=UUID, help="launch a blast that is planned")

    def handle(self, *args: Any, **options: Any) -> None:
        last: Progress | None = None

        def remember(progress: Progress) -> None:
            nonlocal last
            last = progress
            show(progress)

        try:
            with self._progress() as show:
                result = self._run(options, remember)
            self._report(result, options["rejects"])
        except (MessagingError, DatabaseError, OSError, UnicodeDecodeError) as error:
            raise CommandError(_line(error) + self._how_to_resume(last, options, error)) from None
        except KeyboardInterrupt:
            hint = self._how_to_resume(last, options) or " Nothing was stored."
            raise CommandError(f"Interrupted.{hint}", returncode=_INTERRUPTED) from None

    def _run(self, options: dict[str, Any], progress: OnProgress) -> PlanResult:
        tenant = Tenant.objects.filter(slug=options["tenant"]).first()
        if tenant is None:
            raise CommandError("There is no tenant with this slug. Tenants are listed in the admin.")
        if options["launch"]:
            return PlanResult.of(launch_blast(options["launch"], tenant_id=tenant.pk))
        required = ("csv",) if options["resume"] else ("csv", "from_", "subject")
        if missing := [f"--{name.rstrip('_')}" for name in required if options[name] is None]:
            raise CommandError(f"Missing: {', '.join(missing)}. See: manage.py blast --help")
        # Standard input, or a path: the planner opens it and answers for what is wrong with it.
        recipients: str | IO[bytes] = sys.stdin.buffer if options["csv"] == "-" else options["csv"]
        launch = not options["no_launch"]
        if options["resume"]:
            return resume_planning(tenant, options["resume"], recipients=recipients, launch=launch, progress=progress)
        return plan_blast(
            tenant,
            recipients=recipients,
            from_=options["from_"],
            subject=options["subject"],
            html=options["html_text"] if options["html_text"] is not None else _read(options["html"]),
            text=_read(options["text"]),
            reply_to=options["reply_to"],
            headers=_headers(options["header"]),
            category=options["category"],
            name=options["name"],
            not_before=options["not_before"],
            expires_at=options["expires"],
            idempotency_key=options["key"],
            launch=launch,
            progress=progress,
        )

    @contextmanager
    def _progress(self) -> Iterator[OnProgress]:
        if not sys.stderr.isatty():
            yield self._plain_progress()
            return
        columns = (TextColumn("planning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("planning", total=None)

            def show(progress: Progress) -> None:
                # `total` is a guess, and a bar beyond its end would look broken.
                total = max(progress.total, progress.rows) if progress.total is not None else None
                bar.update(task, completed=progress.rows, total=total)

            yield show

    def _plain_progress(self) -> OnProgress:
        shown_at = time.monotonic()

        def show(progress: Progress) -> None:
            nonlocal shown_at
            if not progress.rows:
                self.stderr.write(f"blast {progress.blast_id}", str)
            elif time.monotonic() - shown_at >= _QUIET:
                shown_at = time.monotonic()
                self.stderr.write(f"{progress.rows:,} rows read", str)

        return show

    def _report(self, result: PlanResult, rejects_file: str | None) -> None:
        state = {
            BlastState.PLANNING: f"planned and not launched; launch it with --launch {result.blast_id}",
            BlastState.RUNNING: "launched",
        }.get(result.state, result.state.value)
        earlier = " by an earlier command; nothing was planned now" if result.replayed else ""
        self.stdout.write(f"Blast {result.blast_id}: {state}{earlier}.")
        self.stdout.write(
            f"{result.rows:,} rows: {result.planned:,} planned, {result.duplicates:,} duplicates,"
            f" {result.rejected:,} rejected."
        )
        self._report_rejects(result.blast_id, rejects_file)

    def _report_rejects(self, blast_id: UUID, rejects_file: str | None) -> None:
        rejects = BlastReject.objects.filter(blast_id=blast_id).order_by("line").values_list("line", "code", "reason")
        for line, code, reason in rejects[:_SHOWN]:
            self.stdout.write(f"  line {line}: {reason} [{code}]")
        if (more := rejects.count() - _SHOWN) > 0:
            self.stdout.write(f"  … and {more:,} more" + ("" if rejects_file else "; --rejects FILE writes them all"))
        if rejects_file:
            with open(rejects_file, "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(["line", "code", "reason"])
                writer.writerows(rejects.iterator(chunk_size=10_000))

    def _how_to_resume(self, last: Progress | None, options: dict[str, Any], error: Exception | None = None) -> str:
        """Nothing if there is nothing to resume."""
        final = {"blast_cancelled", "blast_launched", "no_valid_recipients"}
        if last is None or getattr(error, "code", None) in final:
            return ""
        command = shlex.join(
            [
                "manage.py",
                "blast",
                "--tenant",
                options["tenant"],
                "--resume",
                str(last.blast_id),
                "--csv",
                options["csv"],
            ]
        )
        # The last chunk may have been committed and not told of.
        return f" At least {last.rows:,} rows are planned and nothing is sent. Resume with: {command}"


def _read(path: str | None) -> str | None:
    return None if path is None else Path(path).read_text(encoding="utf-8")


def _headers(given: list[str] | None) -> dict[str, str] | None:
    if given is None:
        return None
    parts = [header.partition(":") for header in given]
    if not all(colon for _, colon, _ in parts):
        raise CommandError('A --header is written NAME:VALUE, such as "List-Unsubscribe: <https://acme.org/u>".')
    return {name.strip(): value.strip() for name, _, value in parts}


def _line(error: Exception) -> str:
    """One line that says what is wrong. Texts of foreign errors may quote data: only what is known to be safe is shown."""
    if isinstance(error, MessagingError):
        named = error.message if error.message[:1].isupper() or not error.field else f"{error.field}: {error.message}"
        return f"{named} [{error.code}]"
    if isinstance(error, OSError):
        return f"{error.filename or 'A file'}: {error.strerror or type(error).__name__}."
    if isinstance(error, UnicodeDecodeError):
        return "The html or text file is not UTF-8. Save it as UTF-8."
    return f"The database refused or is not there ({type(error).__name__})."
