"""What a database session must be set to: asked for by each connection, read back, and refused if a pooler dropped it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, connections
from django.db.models.signals import pre_migrate

from core.db import session
from core.db.postgres.base import DatabaseWrapper
from devtools.processes import CHECKOUT
from devtools.stack import url_of


def _shown(*names: str) -> list[str]:
    with connection.cursor() as cursor:
        found = []
        for name in names:
            cursor.execute(f"SHOW {name}")
            found.append(cursor.fetchone()[0])
    return found


@pytest.fixture
def wrapper(transactional_db: None) -> Iterator[DatabaseWrapper]:
    """As if a pooler dropped the options."""
    options = {name: value for name, value in connection.settings_dict["OPTIONS"].items() if name != "options"}
    wrapper = DatabaseWrapper(connection.settings_dict | {"OPTIONS": options}, "pooled")
    yield wrapper
    wrapper.close()


@pytest.fixture
def role(transactional_db: None) -> Iterator[str]:
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE pooled LOGIN")
    yield "pooled"
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE pooled")


@pytest.mark.django_db
def test_the_server_ends_what_stands_still_and_nobody_waits_long_for_a_lock() -> None:
    assert _shown("idle_in_transaction_session_timeout", "lock_timeout", "deadlock_timeout") == ["5s", "2s", "1s"]
    assert _shown("synchronous_commit", "plan_cache_mode") == ["on", "force_generic_plan"]


def test_the_server_s_end_of_a_connection_is_asked_for_keepalives_too() -> None:
    """They show on TCP only."""
    given = dict(word.split("=") for word in settings.DATABASES["default"]["OPTIONS"]["options"].split() if "=" in word)
    idle, interval, count = (int(given[f"tcp_keepalives_{name}"]) for name in ("idle", "interval", "count"))
    assert idle + interval * count <= 30
    assert 0 < int(given["tcp_user_timeout"]) <= 30_000


def test_a_session_without_its_settings_is_refused_with_what_to_do(wrapper: DatabaseWrapper) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        wrapper.ensure_connection()
    assert wrapper.connection is None
    for word in (
        "plan_cache_mode is auto",
        "lock_timeout is 0",
        "ALTER ROLE",
        "idle_in_transaction_session_timeout = '5s'",
    ):
        assert word in str(caught.value)


def test_a_role_that_has_the_settings_will_do(wrapper: DatabaseWrapper, role: str) -> None:
    with connection.cursor() as cursor:
        for name, value in session.NEEDED.items():
            cursor.execute(f"ALTER ROLE {role} SET {name} = '{value}'")
    wrapper.settings_dict["USER"] = role
    wrapper.ensure_connection()
    assert wrapper.is_usable()


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        (("force_generic_plan", "on", 5.0, 2.0), 0),
        (("force_generic_plan", "remote_apply", 10.0, 5.0), 0),
        (("auto", "off", 0.0, 0.0), 4),
        (("force_generic_plan", "local", 60.0, 10.0), 3),
    ],
)
def test_what_is_accepted(found: tuple[Any, ...], problems: int) -> None:
    assert len(session.wrong(found)) == problems


@pytest.mark.django_db
def test_a_migration_has_patience_and_what_comes_after_it_has_none() -> None:
    seen = []

    def look(**_: object) -> None:
        seen.append(_shown("lock_timeout", "idle_in_transaction_session_timeout"))

    pre_migrate.connect(look)
    try:
        call_command("migrate", verbosity=0)
    finally:
        pre_migrate.disconnect(look)
    assert seen
    assert set(map(tuple, seen)) == {("0", "0")}
    assert _shown("lock_timeout", "idle_in_transaction_session_timeout") == ["2s", "5s"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "word"),
    [
        (["manage.py", "clock"], "ALTER ROLE"),
        (["-c", "import config.wsgi"], "ALTER ROLE"),
        (["manage.py", "check", "--database", "default"], "ALTER ROLE"),
        (["manage.py", "rundramatiq", "--processes", "1", "--threads", "1"], "database_session_refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_no_process_starts_behind_a_pooler_that_drops_the_settings(
    transactional_db: None, command: list[str], word: str
) -> None:
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.pooled_settings",
        "DATABASE_URL": url_of(connection.settings_dict),
        "REDIS_URL": settings.REDIS_URL,
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode not in (0, None)
    assert word in done.stdout + done.stderr


@pytest.mark.django_db(transaction=True)
def test_a_connection_to_a_server_that_takes_no_writes_any_more_is_not_kept() -> None:
    connection.ensure_connection()
    assert connection.is_usable()
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")  # as of a primary that became a standby
    assert not connection.is_usable()
    connection.errors_occurred = True
    connection.close_if_unusable_or_obsolete()
    assert connections["default"].connection is None
