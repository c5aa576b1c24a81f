"""A server process that the keeper owns: start, wait until it answers, stop, kill, start again at the same address."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.embedded.errors import ADVICE, EmbeddedServiceError, with_log
from config.embedded.locks import lock
from config.embedded.options import Options
from config.embedded.paths import Paths

#: A first start on a slow disk, or recovery after a crash.
_START_SECONDS = 40.0
#: After that a server is told off: children that ignore a stop request are not worth a longer wait in development.
_STOP_SECONDS = 10.0
#: Between two questions whether a server that has just been started answers: it tells nobody by itself.
_PROBE_SECONDS = 0.01
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Account:
    """The system user that a server runs as; None in `Server.account` is the keeper's own."""

    uid: int
    gid: int


class Server(ABC):
    """One server of one data folder. Not thread-safe: the keeper has one thread."""

    name: str
    #: Asks for an orderly end that does not wait for clients.
    stop_signal: signal.Signals

    def __init__(self, options: Options, paths: Paths) -> None:
        self.options = options
        self.paths = paths
        self.log = paths.folder / f"{self.name}.log"
        self.account: Account | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.held_down = False  # by a command: it stays down until a command starts it again

    @property
    @abstractmethod
    def url(self) -> str:
        """The address for clients, the same over every restart within the keeper's life."""

    @abstractmethod
    def prepare(self, lock_descriptor: int) -> Sequence[str]:
        """Make the data folder ready; nothing is running there. Returns the command line of the server."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it takes clients now."""

    @abstractmethod
    def left_over_pid(self) -> int | None:
        """The pid file's content; only asked while a server of this folder is known to run."""

    @abstractmethod
    def delete_data(self) -> None:
        """Delete what `prepare` and the server have written."""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ensure(self) -> None:
        """Start it unless it runs, or a command wants it to be down."""
        if not self.running and not self.held_down:
            self.start()

    def start(self) -> None:
        """Start it and return once it answers. Raises `EmbeddedServiceError` with the end of its log."""
        if self.running:
            return
        self.held_down = False
        self._end_left_over()
        with lock(self._lock_path, seconds=_START_SECONDS) as descriptor, self.log.open("ab") as log:
            arguments = self.prepare(descriptor)
            # The server and its children inherit the locked descriptor: while one of them lives, the lock is held.
            self.process = self.spawn(arguments, descriptor, log.fileno(), self.stop_signal)
        self._wait_until_it_answers(self.process)

    def stop(self) -> None:
        """End it in an orderly way; by force after a while."""
        if self.process is None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as by the kernel when memory is short."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def spawn(
        self, arguments: Sequence[str], lock_descriptor: int, log_descriptor: int, when_keeper_dies: signal.Signals
    ) -> subprocess.Popen[bytes]:
        """Run a program as the server's account; it gets `when_keeper_dies` if the keeper dies (Linux)."""
        account = self.account
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=log_descriptor,
            stderr=log_descriptor,
            pass_fds=(lock_descriptor,),
            cwd="/",
            env=_environment(),
            umask=0o077,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=() if account else None,
            preexec_fn=_death_signal(when_keeper_dies),
        )

    @property
    def _lock_path(self) -> Path:
        return self.paths.folder / f"{self.name}.lock"

    def _end_left_over(self) -> None:
        """A keeper that was killed may have left its server behind: on Linux it is ending, elsewhere it runs."""
        with contextlib.suppress(TimeoutError), lock(self._lock_path, seconds=0.001):
            return
        pid = self.left_over_pid()
        for request in (self.stop_signal, signal.SIGKILL):
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, request)
            with contextlib.suppress(TimeoutError), lock(self._lock_path, seconds=_STOP_SECONDS):
                return
        raise EmbeddedServiceError(
            f"A {self.name} server of an earlier run still uses {self.paths.folder} and does not stop. "
            f"Stop it (`lsof '{self._lock_path}'` names it) and try again."
        )

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self.answers():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PROBE_SECONDS)
                raise EmbeddedServiceError(with_log(f"{self.name} ended at its start.", self.log) + self.advice)
            if time.monotonic() > deadline:
                self.kill()
                raise EmbeddedServiceError(
                    with_log(f"{self.name} gave no answer within {_START_SECONDS:.0f} s.", self.log) + self.advice
                )

    @property
    def advice(self) -> str:
        return f"\nIf the data in {self.paths.folder} may go, delete that folder and try again.\n{ADVICE}"


def _environment() -> Mapping[str, str]:
    # Nothing else: PGDATA, PGPORT and the like of the person at the terminal are not meant for this server.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _death_signal(number: signal.Signals) -> Callable[[], None] | None:
    """What the child does before it becomes the server: ask the kernel for `number` on its parent's death."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    keeper = os.getpid()

    def before_exec() -> None:
        # After the change of user, which would clear it; and the parent may have died before it was set.
        if prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0 or os.getppid() != keeper:
            os._exit(1)

    return before_exec
