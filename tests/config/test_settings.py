"""Where a part of a production environment is missing, nothing falls back to development."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from core.management.commands.generate_keys import fresh_lines

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["DATABASE_URL", "REDIS_URL", "SECRET_KEY", "ENCRYPTION_KEYS", "FINGERPRINT_KEY"])
def test_one_part_of_production_alone_is_refused(name: str) -> None:
    """E.g. a worker whose DATABASE_URL did not reach it must not eat tickets against an empty ledger."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    value = {"DATABASE_URL": "postgresql:///x", "REDIS_URL": "redis://localhost"}.get(name, "x" * 40)
    done = subprocess.run(
        [sys.executable, "-c", "import config.settings"],
        cwd=ROOT,
        env=kept | {name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "ImproperlyConfigured" in done.stderr
    assert value not in done.stderr


@pytest.mark.parametrize("debug", [True, False])
def test_what_measures_and_breaks_is_for_development(debug: bool) -> None:
    """An installation has no `devtools`."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    given = dict(line.split("=", 1) for line in fresh_lines()) | {
        "DEBUG": str(int(debug)),
        "ALLOWED_HOSTS": "send.example",
        "DATABASE_URL": "postgresql:///x",
        "REDIS_URL": "redis://localhost",
        "RESEND_API_KEY": "re_x",
    }
    code = "from config.settings import INSTALLED_APPS; print('devtools' in INSTALLED_APPS)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=kept | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(debug)


@pytest.mark.django_db
def test_a_database_that_vanished_is_noticed_within_half_a_minute() -> None:
    """Also by who has just sent a statement: the kernel sends no keepalives then, and tries for a quarter of an hour."""
    connection.ensure_connection()
    given = {name: int(value) for name, value in connection.connection.info.get_parameters().items() if value.isdigit()}
    assert given["keepalives_idle"] + given["keepalives_interval"] * given["keepalives_count"] <= 30
    assert 0 < given["tcp_user_timeout"] <= 30_000


@pytest.mark.process
def test_check_deploy_finds_nothing_in_production() -> None:
    """What it would have and does not get is named, with the reason, in the settings."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    production = dict(line.split("=", 1) for line in fresh_lines()) | {
        "DEBUG": "0",
        "ALLOWED_HOSTS": "send.example",
        "DATABASE_URL": "postgresql:///x",
        "REDIS_URL": "redis://localhost",
        "RESEND_API_KEY": "re_x",
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT,
        env=kept | production,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "no issues" in done.stdout
