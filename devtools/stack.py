"""The whole system as real processes: sandbox provider, web, one worker process per rail, clock, and their servers.

    with Stack(data_dir=folder, sandbox_flags=["--rate", "0"], workers=2) as stack:
        stack.sandbox.wait(emails=100)
        stack.worker("marketing").kill()
        stack.manage("blast", ...)
        stack.check()

Without `database_url` and `redis_url` it brings servers and a database of its own, new and deleted afterwards, migrated,
with keys of its own, and runs as in production (DEBUG off). With them (a test database) it inherits the rest of the
environment, so that the caller can open what the processes sealed, and migrates nothing.
"""

from __future__ import annotations

import fcntl
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import requests

from devtools.processes import START_SECONDS, Process, ProcessDied, Supervisor
from devtools.sandbox.process import Sandbox
from devtools.stack_env import base_env, production

RAILS = ("transactional", "marketing")
_SERVICES = "services"
#: Above a request to the provider (10 s).
_WORKER_STOP_SECONDS = 15.0
_SERVICES_GONE_SECONDS = 20.0


class StackError(RuntimeError):
    """It cannot be started here; the message says why."""


class StackSandbox(Sandbox):
    """The calls of `Sandbox`, on a process of the stack (`process`: kill it, pause it, start it again)."""

    def __init__(self, process: Process) -> None:
        # Not the parent's: that would start a process of its own.
        self.process = process
        self.url = process.wait_ready()[1]
        self._session = requests.Session()
        self._session.trust_env = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> int:
        self._session.close()
        return self.process.terminate()


class Stack:
    """See the module. `workers`: processes per rail, or for each rail by name. `env` goes to every process, last.

    `data_dir` belongs to the stack alone while it runs: logs (kept, emptied at the next start) and servers (deleted).
    Raises StackError, ProcessDied, CommandFailed; then nothing is left running.
    """

    sandbox: StackSandbox
    web: Process
    clock: Process
    web_url: str
    database_url: str
    redis_url: str

    def __init__(
        self,
        *,
        data_dir: Path,
        database_url: str | None = None,
        redis_url: str | None = None,
        sandbox_flags: Sequence[str] = (),
        web: bool = True,
        workers: int | Mapping[str, int] = 1,
        threads: int = 8,
        clock: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if (database_url is None) != (redis_url is None):
            raise ValueError("Give both of database_url and redis_url, or neither.")
        self.data_dir = data_dir.absolute()
        self._given = (database_url, redis_url) if database_url and redis_url else None
        self._sandbox_flags = list(sandbox_flags)
        self._with_web, self._with_clock = web, clock
        self._workers = dict.fromkeys(RAILS, workers) if isinstance(workers, int) else dict(workers)
        self._threads = threads
        self._extra = dict(env or {})
        self._by_rail: dict[str, list[Process]] = {rail: [] for rail in RAILS}
        self._exit = ExitStack()

    # ------------------------------------------------------------------------------------------------ life

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            undo.enter_context(_OnlyOne(self.data_dir))
            self.supervisor = undo.enter_context(Supervisor(self.data_dir / "logs", base_env()))
            if self._given:
                self.database_url, self.redis_url = self._given
            else:
                undo.enter_context(self._own_services())
                self.supervisor.env |= production()
            # They end before the servers that they use.
            undo.callback(lambda: self.supervisor.end([p for p in self.supervisor.processes if p.name != _SERVICES]))
            self.supervisor.env |= {"DATABASE_URL": self.database_url, "REDIS_URL": self.redis_url} | self._extra
            self._start_all()
            self._exit = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self._exit.close()

    def check(self) -> None:
        """Raises ProcessDied if a process ended that nobody of us ended."""
        self.supervisor.check()

    # ------------------------------------------------------------------------------------------------ parts

    @property
    def env(self) -> Mapping[str, str]:
        """What every process gets. Holds secrets: not for output."""
        return self.supervisor.env

    def worker(self, rail: str, number: int = 0) -> Process:
        return self._by_rail[rail][number]

    def workers(self, rail: str) -> Sequence[Process]:
        return tuple(self._by_rail[rail])

    def start_worker(self, rail: str) -> Process:
        """One more worker process of a rail. Not yet ready: see `Process.wait_ready`."""
        number = len(self._by_rail[rail]) + 1
        process = self.supervisor.start(
            f"email-{rail}" if number == 1 else f"email-{rail}-{number}",
            [
                *(sys.executable, "manage.py", "rundramatiq", "--queues", f"notif.email.{rail}"),
                *("--processes", "1", "--threads", str(self._threads), "--worker-shutdown-timeout", "60000"),
            ],
            ready="Worker process is ready for action",
            stop_seconds=_WORKER_STOP_SECONDS,
        )
        self._by_rail[rail].append(process)
        return process

    def start_clock(self, name: str) -> Process:
        """One more clock. Not yet ready: see `Process.wait_ready`."""
        return self.supervisor.start(name, [sys.executable, "manage.py", "clock"], ready=r"\bclock_started\b")

    def manage(self, *arguments: str, capture: bool = True, env: Mapping[str, str] | None = None) -> str:
        """`manage.py …` in this stack; its output, or (without `capture`) on the terminal. Raises CommandFailed."""
        return self.supervisor.run([sys.executable, "manage.py", *arguments], capture=capture, env=env)

    def python(self, *arguments: str) -> str:
        """`python …` in this stack, from the checkout; its output. Raises CommandFailed."""
        return self.supervisor.run([sys.executable, *arguments])

    def server(self, do: str, name: str) -> None:
        """`stop`, `start`, `kill` or `restart` `postgres` or `redis`; only if the servers are the stack's own."""
        self._embedded(do, name)

    def keeper_command(self, name: str) -> Process:
        """A command to the keeper of the stack's own servers, for one who does not wait: not started yet, its last two words
        are to be set. Raises StackError."""
        if self._given:
            raise StackError("The servers belong to somebody else.")
        return self.supervisor.add(f"command-{name}", [sys.executable, "-m", "config.embedded", "status", name])

    # ------------------------------------------------------------------------------------------------ starting

    def _start_all(self) -> None:
        sandbox = self.supervisor.start(
            "sandbox",
            [sys.executable, "-m", "devtools.sandbox", "--port", "0", *self._sandbox_flags],
            ready=r"sandbox listening on (http://\S+)",
        )
        if not self._given:
            self.manage("migrate", "--verbosity", "0")
        self.sandbox = StackSandbox(sandbox)
        _keep_port(sandbox, "--port", self.sandbox.url)
        self.supervisor.env |= {"RESEND_BASE_URL": self.sandbox.url, "RESEND_API_KEY": "re_sandbox"} | self._extra
        # All at once, then wait for each: most of their start is importing.
        if self._with_web:
            self.web = self.supervisor.start(
                "web",
                [
                    *(sys.executable, "-m", "gunicorn", "config.wsgi", "--bind", "127.0.0.1:0"),
                    *("--worker-class", "config.gunicorn_worker.Worker", "--threads", "8", "--no-control-socket"),
                ],
                ready=r"Listening at: (http://\S+)",
            )
        for rail, count in self._workers.items():
            for _ in range(count):
                self.start_worker(rail)
        if self._with_clock:
            self.clock = self.start_clock("clock")
            self.clock.wait_ready()
        for processes in self._by_rail.values():
            for process in processes:
                process.wait_ready()
        if self._with_web:
            self.web_url = self.web.wait_ready()[1]
            _keep_port(self.web, "--bind", self.web_url)
            self._wait_for_web()

    def _wait_for_web(self) -> None:
        """The port is open before the application is loaded; a request waits for that. What it answers is no matter."""
        try:
            with requests.Session() as session:
                session.trust_env = False
                session.get(f"{self.web_url}/", timeout=START_SECONDS)
        except requests.RequestException as error:
            raise ProcessDied(self.web, f"did not answer ({type(error).__name__})") from error

    def _own_services(self) -> _Services:
        folder = Path(tempfile.mkdtemp(prefix="services-", dir=self.data_dir))
        self.supervisor.env |= {"EMBEDDED_DATA_DIR": str(folder), "EMBEDDED_THROWAWAY": "1"}
        # They live as long as a process that asked for them: this one, which does nothing else.
        holder = self.supervisor.start(
            _SERVICES,
            [
                *(sys.executable, "-m", "config.embedded", "run"),
                *("sh", "-c", "echo services are up; exec tail -f /dev/null"),
            ],
            ready="services are up",
        )
        holder.wait_ready()
        servers = self._embedded("status")["servers"]
        self.database_url, self.redis_url = servers["postgres"]["url"], servers["redis"]["url"]
        return _Services(holder, folder)

    def _embedded(self, *arguments: str) -> dict[str, Any]:
        if self._given:
            raise StackError("The servers belong to somebody else.")
        answer: dict[str, Any] = json.loads(self.python("-m", "config.embedded", *arguments))
        return answer


class _Services:
    """Leaving it ends the servers and waits until their keeper has deleted the folder."""

    def __init__(self, holder: Process, folder: Path) -> None:
        self._holder = holder
        self._folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self._holder.terminate()
        deadline = time.monotonic() + _SERVICES_GONE_SECONDS
        while self._folder.exists() and time.monotonic() < deadline:
            time.sleep(0.02)


class _OnlyOne:
    """Two stacks in one folder would write into each other's logs."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "in-use.lock"

    def __enter__(self) -> None:
        self._file = self._path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise StackError(f"Another run uses {self._path.parent}. Wait for it, or choose another folder.") from None

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()


def url_of(database: Mapping[str, Any]) -> str:
    """A DATABASE_URL from Django's settings of a connection, e.g. `connection.settings_dict` of a test database."""
    query = {"host": database["HOST"], "port": database["PORT"], "user": database["USER"]}
    query["password"] = database["PASSWORD"]
    return f"postgresql:///{quote(database['NAME'], safe='')}?" + urlencode({k: str(v) for k, v in query.items() if v})


def _keep_port(process: Process, flag: str, url: str) -> None:
    """When it is started again, it listens where it did: the others know that address."""
    address = url.removeprefix("http://")
    process.command[process.command.index(flag) + 1] = address if flag == "--bind" else address.rsplit(":", 1)[1]
