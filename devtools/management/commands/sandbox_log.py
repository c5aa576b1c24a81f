"""manage.py sandbox_log"""

from __future__ import annotations

import json
from typing import Any

import requests
from django.core.management.base import CommandError, CommandParser

from devtools.management.tool import ToolCommand

_TIMEOUT = 60.0


class Command(ToolCommand):
    help = "What the sandbox provider has accepted, as `manage.py audit --provider-log` wants it: ids and times, no addresses."
    epilog = "example:\n  manage.py sandbox_log > log.ndjson && manage.py audit --provider-log log.ndjson\n"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--url", default="http://127.0.0.1:8025", help="where the sandbox is (default: %(default)s)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with requests.get(f"{options['url']}/_sandbox/log", stream=True, timeout=_TIMEOUT) as got:
                got.raise_for_status()
                for line in got.iter_lines(chunk_size=65_536):
                    entry = json.loads(line)
                    told = {"send": entry["tags"].get("send_id"), "id": entry["id"], "at": entry["accepted_at"]}
                    self.stdout.write(json.dumps(told))
        except requests.RequestException as error:
            raise CommandError(f"No sandbox answers there ({type(error).__name__}).") from None
