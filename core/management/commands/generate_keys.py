"""`generate_keys`: the secrets of an installation, as lines of an env file. See `config.keys` for how it runs without
any settings."""

from __future__ import annotations

import argparse
import base64
import secrets
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

HELP = """\
Print fresh SECRET_KEY, ENCRYPTION_KEYS and FINGERPRINT_KEY, ready for an env file. Nothing is stored and nothing is
read: it runs before anything else is set up.

  python manage.py generate_keys >> .env

Keep them as you keep the database, and apart from its backups: without ENCRYPTION_KEYS no stored recipient can be
read, and with another FINGERPRINT_KEY none can be found. To rotate the encryption key, put the new one in front and
keep the old: ENCRYPTION_KEYS=<new>,<old>. FINGERPRINT_KEY stays for good.
"""


def fresh_lines() -> list[str]:
    """Values need no quotes: letters, digits, `-`, `_`, `=` and `:` only."""
    # The id says when the key was made, so that two keys in one list tell which is the newer.
    key_id = f"k{datetime.now(UTC):%y%m%d%H%M}"
    return [
        f"SECRET_KEY={secrets.token_urlsafe(50)}",
        f"ENCRYPTION_KEYS={key_id}:{_key()}",
        f"FINGERPRINT_KEY={_key()}",
    ]


def _key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


class Command(BaseCommand):
    help = HELP
    requires_system_checks = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        # Not Django's formatter, which would flow the example into the text.
        return super().create_parser(
            prog_name, subcommand, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )

    def handle(self, *args: Any, **options: Any) -> None:
        for line in fresh_lines():
            self.stdout.write(line)
