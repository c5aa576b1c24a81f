"""Raw SQL for the parts where the plan of a statement is the product.

`ledger_cursor()` gives a psycopg cursor on Django's connection, inside whatever transaction is open there. It binds on
the server and prepares what it repeats: the ledger's statements are long and their planning would cost more than their
execution. Errors are Django's (`django.db.Error`), so that its bookkeeping notices a dead connection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID

import psycopg
from django.db import Error, connection
from psycopg.rows import TupleRow

from core.db.faults import is_transient
from core.db.session import BRIEF_WAIT

log = logging.getLogger(__name__)


class LedgerCursor:
    """A thin skin over psycopg's cursor: named parameters, every statement prepared.

    A list of UUIDs goes as one text, a fifth of the work of psycopg's item by item: cast it (`%(ids)s::uuid[]`).
    """

    def __init__(self, cursor: psycopg.Cursor[TupleRow]) -> None:
        self._cursor = cursor

    def run(self, sql: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Execute; returns the number of rows touched."""
        return self._execute(sql, parameters).rowcount

    def all(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[TupleRow]:
        return self._execute(sql, parameters).fetchall()

    def one(self, sql: str, parameters: Mapping[str, Any] | None = None) -> TupleRow | None:
        return self._execute(sql, parameters).fetchone()

    def _execute(self, sql: str, parameters: Mapping[str, Any] | None) -> psycopg.Cursor[TupleRow]:
        if parameters:
            parameters = {name: _bound(value) for name, value in parameters.items()}
        return self._cursor.execute(cast("Any", sql), parameters, prepare=True)


def _bound(value: Any) -> Any:
    if type(value) is list and value and type(value[0]) is UUID:
        return "{" + ",".join([f"{item.int:032x}" if item is not None else "NULL" for item in value]) + "}"
    return value


@contextmanager
def ledger_cursor() -> Iterator[LedgerCursor]:
    if not connection.in_atomic_block:
        connection.close_if_health_check_failed()
    connection.ensure_connection()
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
        yield LedgerCursor(cursor)


_LOCK_TIMEOUT = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %(timeout)s, true)"


@contextmanager
def brief_waits() -> Iterator[None]:
    """Inside a transaction: no statement waits for a lock longer than `core.db.session.BRIEF_WAIT`. For what is done beside the
    work in hand, and again by the next one that meets the same. After an error the transaction, or its savepoint, has to end."""
    with ledger_cursor() as sql:
        before = sql.one(_LOCK_TIMEOUT, {"timeout": f"{BRIEF_WAIT * 1000:.0f}ms"})
        assert before is not None
        yield
        sql.run(_LOCK_TIMEOUT, {"timeout": before[0]})


def require_session() -> None:
    """For a process that starts: raises ImproperlyConfigured if its sessions are not what they must be (`core.db.session`).

    With the database away it starts all the same, and the first connection is asked.
    """
    try:
        connection.ensure_connection()
    except Error as error:
        if not is_transient(error):
            raise
        log.warning("database_away", extra={"error": type(error).__name__})
    finally:
        connection.close()
