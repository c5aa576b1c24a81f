"""What a release does to a ledger that is in use."""

from __future__ import annotations

import re

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

#: Tables with a few rows for each tenant at most.
SMALL = {"messaging_tenant_lanes"}
_INDEX = re.compile(r'CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)\S+ ON "?(\w+)')
_UNIQUE = re.compile(r'ALTER TABLE "?(\w+)"? ADD CONSTRAINT \S+ (?:UNIQUE|PRIMARY KEY|EXCLUDE) ?\(')
_NEW = re.compile(r'CREATE TABLE "?(\w+)')

pytestmark = pytest.mark.django_db(transaction=True)  # building beside writers is not done in one


def test_no_index_of_a_table_that_may_be_large_is_built_while_its_writers_wait() -> None:
    """After the first migration: that is an installation which sends."""
    loader = MigrationExecutor(connection).loader
    locking = {}
    plan = loader.graph.forwards_plan(*loader.graph.leaf_nodes("messaging"))
    for key in plan:
        if key[0] != "messaging" or key[1] == "0001_initial":
            continue
        migration = loader.get_migration(*key)
        state = loader.project_state(key, at_end=False)
        with connection.schema_editor(collect_sql=True, atomic=False) as editor:
            migration.apply(state, editor, collect_sql=True)
        sql = "\n".join(editor.collected_sql)
        built = {*_INDEX.findall(sql), *_UNIQUE.findall(sql)} - {*_NEW.findall(sql)} - SMALL
        if built:
            locking[key[1]] = built
    assert locking == {}


def test_the_models_are_what_the_migrations_make() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
