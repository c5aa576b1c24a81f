"""The using side: find the keeper or start one, and stay connected to it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from config.embedded.errors import EmbeddedServiceError, with_log
from config.embedded.locks import lock
from config.embedded.options import Options
from config.embedded.paths import Paths, check_sockets_folder, data_folder

#: Longer than anything the keeper waits for by itself, so that its own, better message comes first.
_ANSWER_SECONDS = 120.0
_ROOT = Path(__file__).resolve().parents[2]
_VARIABLES = {"postgres": "DATABASE_URL", "redis": "REDIS_URL"}


def ensure_services(folder: Path, *, need_postgres: bool, need_redis: bool) -> None:
    """Have the servers run for the rest of this process's life; put their addresses into `os.environ`.

    Sets DATABASE_URL, REDIS_URL (those that are needed) and EMBEDDED_CONTROL (for `command`). Child processes inherit
    the variables and not the claim: the servers live as long as a process that called this, or one that it forked or
    became by exec, does. The database `dualrail` exists afterwards and may be empty. Raises `EmbeddedServiceError`.
    """
    servers = [name for name, needed in (("postgres", need_postgres), ("redis", need_redis)) if needed]
    options = Options.read(folder)
    paths = Paths.of(options.folder)
    request = {"do": "use", "servers": servers}
    found = _use_running(paths, request)
    if found is None:
        data_folder(options.folder)
        # Until the new keeper has answered: then it can be found, and who waited here finds it.
        with lock(paths.spawn_lock):
            found = _use_running(paths, request) or _use_new(options, paths, request)
    connection, answer = found
    # It stays open until the kernel closes it: inheritable, because `manage.py rundramatiq` execs; a bare number,
    # because a socket object would close it when it is collected.
    connection.set_inheritable(True)
    connection.detach()
    os.environ |= {_VARIABLES[name]: url for name, url in answer["urls"].items()}
    os.environ["EMBEDDED_CONTROL"] = str(paths.control)


def command(do: str, server: str | None = None) -> Mapping[str, Any]:
    """Tell the keeper of this process or of its parents: `status`, or `start`, `stop`, `kill`, `restart` a server.

    Returns the keeper's status afterwards (see `keeper`); a started server answers at the same address as before.
    Raises `EmbeddedServiceError`, also when the servers of this process are not embedded ones.
    """
    try:
        connection = _connected(Path(os.environ["EMBEDDED_CONTROL"]))
    except (KeyError, FileNotFoundError, ConnectionRefusedError) as error:
        raise EmbeddedServiceError("No embedded services are running here.") from error
    with connection:
        return _checked(_ask(connection, {"do": do, "server": server}))


def _use_running(paths: Paths, request: Mapping[str, Any]) -> tuple[socket.socket, Mapping[str, Any]] | None:
    """The claim on a keeper that runs, and its answer; None if there is none, or it is about to end."""
    try:
        check_sockets_folder(paths.sockets)
        connection = _connected(paths.control)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    try:
        return connection, _checked(_ask(connection, request))
    except ConnectionError:
        connection.close()
        return None


def _use_new(options: Options, paths: Paths, request: Mapping[str, Any]) -> tuple[socket.socket, Mapping[str, Any]]:
    """Start a keeper. Its first client is the other end of a socket pair: no moment in which it has none."""
    ours, theirs = socket.socketpair()
    with theirs, paths.keeper_log.open("ab") as log:
        # Returns at once: the keeper forks, so that it is nobody's child and in nobody's terminal session.
        subprocess.run(
            [sys.executable, "-m", "config.embedded.keeper", str(options.folder), str(theirs.fileno())],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(theirs.fileno(),),
            cwd=_ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"PYTHONPATH": str(_ROOT)},
        )
    try:
        return ours, _checked(_ask(ours, request))
    except ConnectionError as error:
        ours.close()
        raise EmbeddedServiceError(with_log("The keeper of the servers ended.", paths.keeper_log)) from error


def _connected(control: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(control))
    except OSError:
        connection.close()
        raise
    return connection


def _ask(connection: socket.socket, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keeper's answer. Raises `ConnectionError` if it ends without one."""
    connection.settimeout(_ANSWER_SECONDS)
    try:
        connection.sendall(json.dumps(request).encode())
        with connection.makefile("rb") as lines:
            line = lines.readline()
    except TimeoutError as error:
        raise EmbeddedServiceError(f"The keeper of the servers gave no answer in {_ANSWER_SECONDS:.0f} s.") from error
    if not line:
        raise ConnectionResetError
    answer: dict[str, Any] = json.loads(line)
    return answer


def _checked(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if "error" in answer:
        raise EmbeddedServiceError(answer["error"])
    return answer
