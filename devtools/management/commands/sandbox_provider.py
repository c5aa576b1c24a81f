"""`manage.py sandbox_provider`: the sandbox with Django's command line around it.

`python -m devtools.sandbox` does the same without loading the settings (and so without the embedded services that they
start in development).
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from devtools.management.tool import ToolCommand
from devtools.sandbox.cli import DESCRIPTION, EPILOG, add_arguments, options_from
from devtools.sandbox.server import run


class Command(ToolCommand):
    help = DESCRIPTION
    epilog = EPILOG

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
