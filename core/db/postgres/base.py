"""DATABASES["default"]["ENGINE"] = "core.db.postgres"."""

from __future__ import annotations

from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql import base

from core.db.session import HINT, READ_BACK, wrong


class DatabaseWrapper(base.DatabaseWrapper):
    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Raises ImproperlyConfigured if the session is not set as it must be (`core.db.session`): a process that cannot be sure
        that its claims are durable must not make any."""
        connection = super().get_new_connection(conn_params)
        try:
            was, connection.autocommit = connection.autocommit, True  # one round trip instead of three
            found = connection.execute(READ_BACK).fetchone()
            connection.autocommit = was
        except BaseException:
            connection.close()
            raise
        if problems := wrong(found):
            connection.close()
            raise ImproperlyConfigured(f"The database session: {'; '.join(problems)}. {HINT}")
        return connection

    def is_usable(self) -> bool:
        """Django's question before it keeps a connection. One to a server that takes no writes (a primary that became a
        standby) answers everything else as before, and would be kept for an hour."""
        if self.connection is None:
            return False
        try:
            with psycopg.Cursor(self.connection) as cursor:
                row = cursor.execute("SHOW transaction_read_only").fetchone()
        except psycopg.Error:
            return False
        return row is not None and row[0] == "off"
