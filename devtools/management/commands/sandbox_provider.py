"""`manage.py sandbox_provider`: the sandbox with Django's command line around it.

`python -m devtools.sandbox` does the same without loading the settings (and so without the embedded services that they
start in development).
"""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from devtools.sandbox.cli import DESCRIPTION, EPILOG, add_arguments, options_from
from devtools.sandbox.server import run


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
        try:
            settings = options_from(options)
        except ValueError as err:
            raise CommandError(str(err)) from err
        code = run(settings)
        if code:
            raise CommandError("The sandbox could not start.", returncode=code)
