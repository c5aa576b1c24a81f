"""Where things are: the data folder with everything that lasts, and a short folder under /tmp for the sockets.

A unix socket's path is limited to about 107 bytes, and a checkout may lie anywhere; so sockets are in a folder of
their own, named after user and data folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from config.embedded.errors import ADVICE, EmbeddedServiceError

#: Not `tempfile.gettempdir()`: TMPDIR differs between terminals and test runs, and all must find the same keeper.
_SHORT = Path("/tmp")  # noqa: S108  # the folder below it is checked for its owner and mode on every use


@dataclass(frozen=True, slots=True)
class Paths:
    """The files of one data folder."""

    folder: Path
    sockets: Path

    @classmethod
    def of(cls, folder: Path) -> Paths:
        key = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
        return cls(folder=folder, sockets=_SHORT / f"dualrail-{os.geteuid()}-{key}")

    @property
    def control(self) -> Path:
        """The keeper's socket."""
        return self.sockets / "control"

    @property
    def keeper_log(self) -> Path:
        return self.folder / "keeper.log"

    @property
    def keeper_lock(self) -> Path:
        """Held by the keeper for its life."""
        return self.folder / "keeper.lock"

    @property
    def spawn_lock(self) -> Path:
        """Held by a client while it starts a keeper."""
        return self.folder / "spawn.lock"


def data_folder(path: Path) -> None:
    """Make the data folder, parents included. Root may use one that belongs to another user (a mounted checkout)."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.geteuid() not in (0, path.stat().st_uid):
            raise EmbeddedServiceError(
                f"{path} belongs to another user. Remove it, or set EMBEDDED_DATA_DIR to a folder of your own."
            )
        _restrict(path)
    except OSError as error:
        raise EmbeddedServiceError(
            f"{path} cannot be used: {error.strerror}. Set EMBEDDED_DATA_DIR to a folder that you may write.\n{ADVICE}"
        ) from error


def sockets_folder(path: Path) -> None:
    """Make the folder for sockets, or check that it is ours: /tmp is everybody's, and a stranger may be first."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    check_sockets_folder(path)
    _restrict(path)


def check_sockets_folder(path: Path) -> None:
    """Raise `EmbeddedServiceError` unless `path` is a folder of ours, `FileNotFoundError` if there is none."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise EmbeddedServiceError(f"{path} should be ours and belongs to somebody else. Find out why, and remove it.")


def _restrict(path: Path) -> None:
    # As root it can be passed through: PostgreSQL then runs as another user, in a folder of its own below this one.
    path.chmod(0o711 if os.geteuid() == 0 else 0o700)
