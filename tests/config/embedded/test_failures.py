"""What the person at the terminal reads when services cannot be had: the reason and what to do, never a traceback."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from config.embedded import EmbeddedServiceError, postgres_files, redis_server
from tests.config.embedded.conftest import end_keeper
from tests.config.embedded.processes import ROOT, Client

pytestmark = pytest.mark.process


def manage(environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_data_of_another_postgres(environment: dict[str, str], folder: Path) -> None:
    (folder / "postgres").mkdir(parents=True)
    (folder / "postgres" / "PG_VERSION").write_text("16\n")
    environment["EMBEDDED_THROWAWAY"] = "1"
    message = manage(environment)
    assert "was made by PostgreSQL 16, this is 18" in message
    assert "delete that folder" in message
    assert "DATABASE_URL" in message


def test_a_server_that_does_not_start_shows_the_end_of_its_log(
    environment: dict[str, str], folder: Path, start: Callable[..., Client]
) -> None:
    end_keeper(start())
    with (folder / "postgres" / "postgresql.conf").open("a") as file:
        file.write("no_such_setting = 1\n")
    environment["EMBEDDED_THROWAWAY"] = "1"
    message = manage(environment)
    assert "postgres ended at its start" in message
    assert "no_such_setting" in message
    assert "DATABASE_URL" in message


def test_a_folder_that_cannot_be_made(environment: dict[str, str]) -> None:
    environment["EMBEDDED_DATA_DIR"] = "/dev/null/data"
    assert "Set EMBEDDED_DATA_DIR" in manage(environment)


def test_wheel_of_postgres_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedServiceError, match=r"Set DATABASE_URL, or `pip install -r requirements\.lock`"):
        postgres_files.binaries(as_other_user=False)


def test_no_redis_or_one_that_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=5.0.14 sha=00000000:0'\n")
    old.chmod(0o755)
    for candidates in ([], [str(old)]):
        monkeypatch.setattr(redis_server, "_candidates", lambda found=candidates: iter(found))
        with pytest.raises(EmbeddedServiceError, match="Set REDIS_URL, or `pip install"):
            redis_server._program()


def test_redis_on_path_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "valkey-server"
    own.write_text("#!/bin/sh\necho 'Valkey server v=8.1.0 sha=00000000:0'\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert redis_server._program() == str(own)


def test_given_addresses_start_nothing(environment: dict[str, str], folder: Path) -> None:
    environment |= {"DATABASE_URL": "postgresql://nowhere.invalid/db", "REDIS_URL": "redis://nowhere.invalid/0"}
    subprocess.run([sys.executable, "-c", "import config.settings"], cwd=ROOT, env=environment, check=True)
    assert not folder.exists()


def test_one_given_address_starts_the_other_server_only(environment: dict[str, str]) -> None:
    environment |= {"REDIS_URL": "redis://nowhere.invalid/0", "EMBEDDED_THROWAWAY": "1"}
    script = """
import os, config.settings
from config.embedded import command
servers = command("status")["servers"]
assert servers["postgres"]["pid"] and not servers["redis"]["pid"], servers
assert os.environ["REDIS_URL"] == config.settings.REDIS_URL == "redis://nowhere.invalid/0"
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=True)
