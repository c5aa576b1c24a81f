"""`make` on a machine that has only Python, in a folder with a space in its name."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from honcho.environ import parse_procfile

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Enough of a checkout for `make setup`, with nothing to install."""
    checkout = tmp_path / "a checkout"
    (checkout / "devtools").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", checkout)
    shutil.copy(ROOT / "devtools" / "setup.sh", checkout / "devtools")
    (checkout / "requirements.lock").write_text("# nothing\n")
    return checkout


def make(checkout: Path, *arguments: str, status: int = 0) -> str:
    # Not in the environment of the make that may have started these tests.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", *arguments], cwd=checkout, env=env, capture_output=True, text=True, check=False)
    assert bool(done.returncode) == bool(status), done.stdout + done.stderr
    return done.stdout + done.stderr


def test_help_is_the_default_and_lists_every_target(checkout: Path) -> None:
    shown = make(checkout)
    for target in ("help", "setup", "demo", "dev", "test", "lint", "lock", "clean"):
        assert f"\n  {target} " in shown


@pytest.mark.process
def test_setup_makes_a_venv_once_per_lock(checkout: Path) -> None:
    (checkout / "requirements.lock").write_text("without-a-hash==1\n")
    for _ in range(2):  # a failed installation is not taken for done
        assert "could not install requirements.lock" in make(checkout, "setup", status=2)

    (checkout / "requirements.lock").write_text("# nothing\n")
    assert "Installing" in make(checkout, "setup")
    assert make(checkout, "setup") == ""

    (checkout / "requirements.lock").write_text("# another nothing\n")
    assert "Installing" in make(checkout, "setup")

    # The scripts in it name the old place, so it wants a new one.
    moved = checkout.rename(checkout.with_name("a moved checkout"))
    assert "no-such-python is not there" in make(moved, "setup", "PYTHON=no-such-python", status=2)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('[ "$1" = --version ] && echo "Python 3.8.1" && exit; exit 1', "Python 3.8.1 is too old: 3.11"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "comes without venv"),
    ],
)
def test_an_unfit_python_is_named(checkout: Path, script: str, message: str) -> None:
    python = checkout / "some python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    assert message in make(checkout, "setup", f"PYTHON={python}", status=2)


def test_a_missing_python_is_named(checkout: Path) -> None:
    assert "no-such-python is not there" in make(checkout, "setup", "PYTHON=no-such-python", status=2)


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (["ARGS=--short"], "-m devtools.demo --short"),
        (["KEEP=1", "ARGS=--short"], "-m devtools.demo --keep --short"),
        (["KEEP=0"], "-m devtools.demo"),
        ([], "-m devtools.demo"),
    ],
)
def test_arguments_reach_the_demo(checkout: Path, given: list[str], command: str) -> None:
    (line,) = (line for line in make(checkout, "--dry-run", "demo", *given).splitlines() if "devtools.demo" in line)
    assert " ".join(line.split()).endswith(command)


@pytest.mark.parametrize("name", ["Procfile", "Procfile.dev"])
def test_each_rail_has_workers_of_its_own(name: str) -> None:
    processes = parse_procfile((ROOT / name).read_text()).processes
    assert {"web", "email-transactional", "email-marketing", "clock"} <= set(processes)
    for rail in ("transactional", "marketing"):
        command = processes[f"email-{rail}"]
        assert f"--queues notif.email.{rail} " in command
        assert "--threads 8 " in command
