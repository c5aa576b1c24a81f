"""A development tool behind Django's command line: its own parser, and none of Django's checks before it."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser


class ToolCommand(BaseCommand):
    """For a command whose `help` and `epilog` are laid out by hand."""

    epilog: ClassVar[str]
    requires_system_checks = []
    requires_migrations_checks = False

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, epilog=self.epilog, formatter_class=RawDescriptionHelpFormatter, **kwargs
        )
