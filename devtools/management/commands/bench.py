"""`manage.py bench`: the bench, with Django's command line around it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from devtools.bench.options import DESCRIPTION, EPILOG, add_arguments, options_from
from devtools.management.tool import ToolCommand


class Command(ToolCommand):
    help = DESCRIPTION
    epilog = EPILOG

    def add_arguments(self, parser: CommandParser) -> None:
        add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        from devtools.bench.run import run

        if code := run(options_from(options)):
            raise SystemExit(code)
