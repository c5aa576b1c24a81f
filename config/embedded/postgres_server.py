"""PostgreSQL from a wheel's binaries, reached through a unix socket that only we can open."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from config.embedded.errors import EmbeddedServiceError, with_log
from config.embedded.options import Options
from config.embedded.paths import Paths
from config.embedded.postgres_files import binaries, data_home
from config.embedded.server import Account, Server

_DATABASE = "dualrail"
_SUPERUSER = "postgres"
_MAJOR = "18"

# For a developer's machine with two cores, shared with the application, a provider simulator and a browser.
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",  # a million sends are planned without a checkpoint every few seconds
    "autovacuum_naptime": "15s",  # queue tables churn; the default of a minute is for hundreds of databases
    "jit": "off",  # statements are short, compiling them is not
    "random_page_cost": "1.1",  # SSD
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%a ",
    "log_lock_waits": "on",
}
_NO_FSYNC = {"fsync": "off", "full_page_writes": "off"}


class PostgresServer(Server):
    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": rolls back what is open, writes a checkpoint

    def __init__(self, options: Options, paths: Paths) -> None:
        super().__init__(options, paths)
        self._sockets = paths.sockets / "pg"
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root. `nobody` exists everywhere; no account is made on somebody's machine.
            entry = pwd.getpwnam("nobody")
            self.account = Account(entry.pw_uid, entry.pw_gid)
        self._home = data_home(paths.folder, as_other_user=self.account is not None)
        self._data = self._home / "postgres"
        self._unfinished = self._home / "postgres.new"
        # Where the data is elsewhere, a link leads there; deleting the data folder deletes the link and so the data.
        self._link = paths.folder / "postgres" if self._home != paths.folder else None

    @property
    def url(self) -> str:
        return f"postgresql://{_SUPERUSER}@/{_DATABASE}?host={quote(str(self._sockets), safe='')}"

    def prepare(self, lock_descriptor: int) -> Sequence[str]:
        programs = self.options.postgres_bin or binaries(as_other_user=self.account is not None)
        # Nothing runs here (the lock is ours), so what a crash left behind is stale: PostgreSQL itself could only guess
        # so from the pids in these files.
        if self._sockets.exists():
            shutil.rmtree(self._sockets)
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        self._own_folder(self._sockets)
        if self._link and not self._link.is_symlink() and self._data.exists():
            shutil.rmtree(self._data)  # the data folder that it belonged to has been deleted
        if not self._data.exists():
            self._initialise(programs, lock_descriptor)
        if (version := (self._data / "PG_VERSION").read_text().strip()) != _MAJOR:
            raise EmbeddedServiceError(
                f"{self._data} was made by PostgreSQL {version}, this is {_MAJOR}." + self.advice
            )
        settings = {**_SETTINGS, **({} if self.options.fsync else _NO_FSYNC), "unix_socket_directories": self._sockets}
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        return (str(programs / "postgres"), "-D", str(self._data), *arguments)

    def answers(self) -> bool:
        try:
            self._create_database()
        except psycopg.OperationalError:
            return False
        return True

    def left_over_pid(self) -> int | None:
        pid_file = self._data / "postmaster.pid"
        return int(pid_file.read_text().split("\n", 1)[0]) if pid_file.exists() else None

    def delete_data(self) -> None:
        for path in (self._data, self._unfinished):
            if path.exists():
                shutil.rmtree(path)
        if self._link:
            self._link.unlink(missing_ok=True)
            self._home.rmdir()

    def _initialise(self, programs: Path, lock_descriptor: int) -> None:
        """`initdb` beside the final place, then a rename: an interrupted one leaves nothing that looks complete."""
        unfinished = self._unfinished
        if unfinished.exists():
            shutil.rmtree(unfinished)
        self._own_folder(unfinished)
        arguments = [str(programs / "initdb"), "-D", str(unfinished), "-U", _SUPERUSER, "--auth=trust"]
        arguments += ["--encoding=UTF8", "--locale-provider=builtin", "--locale=C.UTF-8", "--no-instructions"]
        if not self.options.fsync:
            arguments.append("--no-sync")
        with self.log.open("ab") as log:
            process = self.spawn(arguments, lock_descriptor, log.fileno(), signal.SIGKILL)
            if process.wait() != 0:
                raise EmbeddedServiceError(with_log("initdb failed.", self.log) + self.advice)
        unfinished.rename(self._data)
        if self._link:
            self._link.unlink(missing_ok=True)
            self._link.symlink_to(self._data)

    def _own_folder(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.account:
            os.chown(path, self.account.uid, self.account.gid)

    def _create_database(self) -> None:
        with psycopg.connect(
            host=str(self._sockets), user=_SUPERUSER, dbname="postgres", connect_timeout=5, autocommit=True
        ) as connection:
            found = connection.execute("SELECT FROM pg_database WHERE datname = %s", (_DATABASE,)).fetchone()
            if found is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_DATABASE)))
