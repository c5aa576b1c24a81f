"""Root, ordinary users, and places that not everybody can reach."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
import pytest

from config.embedded import postgres_files
from tests.config.embedded.processes import ROOT, Client, Watch

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
NOBODY = pwd.getpwnam("nobody")


def _as_nobody() -> Sequence[str]:
    """A command prefix for an ordinary user who can read this interpreter and this checkout.

    Below a home folder with mode 0700 he could not; there he gets the capability to read (not to write) everything.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv (util-linux) is not installed")
    user = (setpriv, f"--reuid={NOBODY.pw_uid}", f"--regid={NOBODY.pw_gid}", "--clear-groups")
    reading = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    # Twice removed: setpriv itself still runs with the means of root.
    probe = "import subprocess, sys; subprocess.check_call([sys.executable, '-c', 'import config.embedded.keeper'])"
    for prefix in (user, user + reading):
        done = subprocess.run([*prefix, sys.executable, "-c", probe], cwd=ROOT, capture_output=True, check=False)
        if done.returncode == 0:
            return prefix
    pytest.skip("an ordinary user cannot reach this interpreter, and the capability to read is not to be had")


@needs_root
@pytest.mark.process
def test_an_ordinary_user_owns_what_he_starts(start: Callable[..., Client], folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, NOBODY.pw_uid, NOBODY.pw_gid)
    client = start(prefix=_as_nobody())
    for pid in client.status.values():
        assert Path(f"/proc/{pid}").stat().st_uid == NOBODY.pw_uid
    assert {path.stat().st_uid for path in folder.iterdir()} == {NOBODY.pw_uid}
    assert folder.stat().st_mode & 0o777 == 0o700
    with psycopg.connect(client.env["DATABASE_URL"]) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    watch = Watch(*client.status.values())
    client.leave()
    watch.wait_gone(10)


@needs_root
@pytest.mark.process
def test_below_a_closed_home_folder_root_has_its_database_too(
    start: Callable[..., Client], environment: dict[str, str], folder: Path
) -> None:
    folder.parent.chmod(0o700)
    environment["EMBEDDED_THROWAWAY"] = "1"
    client = start()
    data = (folder / "postgres").readlink()
    assert data.stat().st_uid == NOBODY.pw_uid
    assert folder.parent.stat().st_mode & 0o777 == 0o700  # nothing was opened up
    watch = Watch(*client.status.values())
    client.leave()
    watch.wait_gone(10)
    assert not data.parent.exists()


def test_reach_is_decided_by_every_folder_on_the_way(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o711)
    assert postgres_files.others_reach(folder)
    folder.parent.chmod(0o700)
    assert not postgres_files.others_reach(folder)


def test_the_copy_of_the_programs_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_files, "_REACHABLE", folder)
    monkeypatch.setattr(postgres_files, "others_reach", lambda path: False)
    for _ in range(2):
        programs = postgres_files.binaries(as_other_user=True)
    assert programs.is_relative_to(folder)
    user = NOBODY.pw_uid if os.geteuid() == 0 else None
    for program in ("postgres", "initdb"):
        subprocess.run([programs / program, "--version"], check=True, capture_output=True, user=user, cwd="/")
