"""Index builds beside full traffic, which may be interrupted: run again, they go on where they were.

A build that is cut leaves an index which is written but never read (`INVALID`). It is dropped and built anew; what was
finished before is not built again.
"""

from __future__ import annotations

from typing import Any

from django.contrib.postgres import operations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_STATE = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"


def is_built(editor: BaseDatabaseSchemaEditor, name: str) -> bool:
    """Whether there is an index of this name. What a cut build, or a cut drop, has left of one is dropped."""
    if editor.collect_sql:
        return False
    quoted = editor.quote_name(name)
    with editor.connection.cursor() as cursor:
        cursor.execute(_STATE, [quoted])
        found = cursor.fetchone()
    if found == (False,):
        editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {quoted}")
    return found == (True,)


class AddIndexConcurrently(operations.AddIndexConcurrently):
    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not is_built(schema_editor, self.index.name):
            super().database_forwards(app_label, schema_editor, from_state, to_state)


class RemoveIndexConcurrently(operations.RemoveIndexConcurrently):
    """Forwards, Django's drops what is left of an index, too."""

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not is_built(schema_editor, self.name):
            super().database_backwards(app_label, schema_editor, from_state, to_state)
