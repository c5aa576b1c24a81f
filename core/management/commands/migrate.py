"""manage.py migrate"""

from __future__ import annotations

from typing import Any

from django.core.management.commands import migrate
from django.db import connections


class Command(migrate.Command):
    """Django's, on a session that has patience (`core.db.session` has none): an index that is built beside full traffic waits for
    every transaction that was open when it began, and a build that gives up leaves an invalid index."""

    def handle(self, *args: Any, **options: Any) -> None:
        connection = connections[options["database"]]
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        super().handle(*args, **options)
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout; RESET idle_in_transaction_session_timeout")
