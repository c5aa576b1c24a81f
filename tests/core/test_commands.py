"""`generate_keys`: before there is anything else. Run as an operator would, in a process without our settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from config.env import Env

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=20, check=False
    )


@pytest.mark.parametrize("how", [("manage.py", "generate_keys"), ("-m", "config.keys")])
@pytest.mark.parametrize(
    "environment",
    [{}, {"DATABASE_URL": "postgresql://nowhere/x"}, {"DEBUG": "0", "SECRET_KEY": "", "ENCRYPTION_KEYS": "broken"}],
    ids=["empty", "production without keys", "broken"],
)
def test_keys_are_made_without_settings_or_servers(how: tuple[str, ...], environment: dict[str, str]) -> None:
    # A server that started would need this folder, and could not have it.
    result = run(*how, EMBEDDED_DATA_DIR="/dev/null/none", **environment)
    assert (result.returncode, result.stderr) == (0, "")
    lines = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert lines.keys() == {"SECRET_KEY", "ENCRYPTION_KEYS", "FINGERPRINT_KEY"}
    env = Env.read(
        {
            **lines,
            "ALLOWED_HOSTS": "example.org",
            "DATABASE_URL": "postgresql://x/y",
            "REDIS_URL": "redis://x",
        }
    )
    assert not env.debug
    assert {len(key) for key in env.encryption_keys.values()} == {32}
    assert len(env.fingerprint_key) == 32


def test_keys_differ_each_time_and_need_no_quotes() -> None:
    from core.management.commands.generate_keys import fresh_lines

    first, second = fresh_lines(), fresh_lines()
    assert not set(first) & set(second)
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=:")
    assert all(set(line) <= allowed for line in first)


def test_help_tells_what_the_keys_are_and_how_they_are_rotated() -> None:
    result = run("manage.py", "generate_keys", "--help", EMBEDDED_DATA_DIR="/dev/null/none")
    assert result.returncode == 0
    assert "ENCRYPTION_KEYS=<new>,<old>" in result.stdout


def test_the_command_is_listed_and_callable(capsys: pytest.CaptureFixture[str]) -> None:
    from django.core.management import call_command, get_commands

    assert get_commands()["generate_keys"] == "core"
    call_command("generate_keys")
    assert capsys.readouterr().out.startswith("SECRET_KEY=")
