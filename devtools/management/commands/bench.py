"""`manage.py bench`: the bench, with Django's command line around it."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from devtools.bench.options import DESCRIPTION, EPILOG, add_arguments, options_from


class Command(BaseCommand):
    help = DESCRIPTION
    requires_system_checks = []
    requires_migrations_checks = False

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, epilog=EPILOG, formatter_class=RawDescriptionHelpFormatter, **kwargs
        )

    def add_arguments(self, parser: CommandParser) -> None:
        add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        from devtools.bench.run import run

        if code := run(options_from(options)):
            raise SystemExit(code)
