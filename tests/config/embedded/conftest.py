from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from config.embedded.locks import lock
from tests.config.embedded.processes import Client, Watch

#: What this test run itself was given; the processes under test get services of their own.
_OURS = (
    "DJANGO_SETTINGS_MODULE",
    "DATABASE_URL",
    "REDIS_URL",
    "EMBEDDED_CONTROL",
    "EMBEDDED_DATA_DIR",
    "EMBEDDED_THROWAWAY",
    "EMBEDDED_FSYNC",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder below one with a space in its name; it does not exist yet."""
    parent = Path(tempfile.mkdtemp(prefix="dualrail test "))
    parent.chmod(0o711)
    data = parent / "data folder"
    yield data
    # A keeper may be about to end, and to delete the folder itself.
    with contextlib.suppress(FileNotFoundError), lock(data / "keeper.lock"):
        pass
    shutil.rmtree(parent, onerror=_unless_gone)


def _unless_gone(function: object, path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    """The environment of a developer who has set nothing; the data goes to `folder`."""
    kept = {n: value for n, value in os.environ.items() if n not in _OURS and not n.startswith("EMBEDDED_")}
    return kept | {"EMBEDDED_DATA_DIR": str(folder), "EMBEDDED_FSYNC": "0", "DEBUG": "1"}


@pytest.fixture
def start(environment: dict[str, str], folder: Path) -> Iterator[Callable[..., Client]]:
    """Starts clients; what a failed test leaves behind is ended."""
    clients: list[Client] = []

    def start(**options: Any) -> Client:
        clients.append(Client.start(environment, **options))
        return clients[-1]

    yield start
    for client in clients:
        if client.process.poll() is None:
            client.kill(signal.SIGKILL)
        if client.status:
            end_keeper(client)


def end_keeper(client: Client) -> None:
    """Have its keeper stop both servers and end, if it has not ended yet."""
    with contextlib.suppress(ProcessLookupError):
        watch = Watch(client.status["keeper"])
        os.kill(client.status["keeper"], signal.SIGTERM)
        watch.wait_gone(15)
