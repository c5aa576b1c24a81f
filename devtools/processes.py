"""Real processes for the demo, the benches and the process tests: started, watched, hurt and ended.

    with Supervisor(logs=folder) as supervisor:
        clock = supervisor.start("clock", [sys.executable, "manage.py", "clock"], ready=r"clock_started")
        clock.wait_ready()
        clock.kill()          # SIGKILL to the whole group, as by the kernel when memory is short
        clock.start()
        clock.wait_ready()
        supervisor.check()    # raises ProcessDied, with the end of its log, if one died by itself

Each process leads a session (and so a process group) of its own and writes to `NAME.log`. Leaving the block ends all of
them; if this process dies, a guardian does it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from devtools.guardian import CHECKOUT, Guard

__all__ = ["CHECKOUT", "CommandFailed", "Process", "ProcessDied", "Supervisor"]

#: Seconds until a process counts as not starting: Django on a machine that is busy with something else.
START_SECONDS = 60.0
#: Seconds between SIGTERM and SIGKILL: more than a request to the provider may take (10 s).
STOP_SECONDS = 15.0
#: Between two looks at a log or at a process that is ending.
_LOOK_SECONDS = 0.02
_TAIL_BYTES = 20_000


class ProcessDied(RuntimeError):
    """A process ended, or did not become ready. The message ends with the tail of its log."""

    def __init__(self, process: Process, what: str) -> None:
        tail = process.tail(25).rstrip() or "(nothing was written)"
        super().__init__(f"{process.name} {what}. Its log, {process.log}, ends with:\n{tail}")


class CommandFailed(RuntimeError):
    """A command that `Supervisor.run` ran ended with an exit code other than 0. The message ends with what it wrote."""

    def __init__(self, command: Sequence[str], code: int, written: str) -> None:
        words = " ".join(Path(word).name for word in command[:3])
        super().__init__(f"`{words} …` ended with exit code {code}.\n{written[-4_000:]}".rstrip())


class Process:
    """One process and what it starts. Made by `Supervisor.start`. Not thread-safe."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        guard: Guard,
        ready: str | None = None,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self.name = name
        self.command = list(command)  # may be changed between two starts
        self.log = log
        self._env = dict(env)
        self._guard = guard
        self._ready = re.compile(ready) if ready else None
        self._stop_seconds = stop_seconds
        self._popen: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._wanted = False  # it should be running: nobody has ended it
        self._asked = False  # SIGTERM was sent

    def start(self) -> None:
        """Start it, also again after it has ended. Its log goes on where it stopped."""
        if self.running:
            raise RuntimeError(f"{self.name} is running")
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._popen = subprocess.Popen(
                self.command,
                cwd=CHECKOUT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._guard.add(self._popen.pid)
        self._wanted = True
        self._asked = False

    def wait_ready(self, seconds: float = START_SECONDS) -> re.Match[str]:
        """Return once its log has a line that matches `ready`: that match. Raises ProcessDied."""
        assert self._ready is not None, f"{self.name} has no sign of being ready"
        return self.wait_log(self._ready, seconds)

    def wait_log(self, pattern: str | re.Pattern[str], seconds: float) -> re.Match[str]:
        """Return once what it has written since its start matches. Raises ProcessDied."""
        deadline = time.monotonic() + seconds
        while True:
            ended = not self.running  # asked first: what it wrote before its end is in the log by then
            if found := re.search(pattern, self.written()):
                return found
            if ended:
                raise ProcessDied(self, f"ended with exit code {self.exit_code} before it was ready")
            if time.monotonic() > deadline:
                raise ProcessDied(self, f"was not ready after {seconds:g} s")
            time.sleep(_LOOK_SECONDS)

    @property
    def pid(self) -> int:
        assert self._popen is not None, f"{self.name} was never started"
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._popen is None else self._popen.poll()

    def check(self) -> None:
        """Raises ProcessDied if it ended and nobody ended it."""
        if self._wanted and not self.running:
            raise ProcessDied(self, f"died with exit code {self.exit_code}")

    def kill(self) -> None:
        """SIGKILL to it and everything it started."""
        self._wanted = False
        self._signal_group(signal.SIGKILL)
        self._collect()

    def pause(self) -> None:
        """SIGSTOP to the group: it hangs, and its connections stay open. On Linux, when this returns no thread of it runs."""
        self._signal_group(signal.SIGSTOP)
        while self._popen is not None and _some_thread_runs(self._popen.pid):
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT to the group."""
        self._signal_group(signal.SIGCONT)

    def send_signal(self, number: signal.Signals) -> None:
        """A signal to the process that was started, and not to its group."""
        if self._popen is not None:
            self._popen.send_signal(number)

    def ask_to_stop(self) -> None:
        """SIGTERM, without waiting. Once and to the leader alone: workers take a second SIGTERM for "at once"."""
        self._wanted = False
        if not self._asked:
            self._asked = True
            self.send_signal(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)  # a paused process would not hear of it

    def ask_group_to_stop(self) -> None:
        """SIGTERM to it and everything it started at once, as systemd and honcho do, without waiting."""
        self._wanted = False
        self._asked = True
        self._signal_group(signal.SIGTERM)

    def terminate(self, seconds: float | None = None) -> int:
        """SIGTERM, and SIGKILL to the group after `seconds`. Returns the exit code (negative: a signal's number)."""
        self.ask_to_stop()
        if self._popen is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(self._stop_seconds if seconds is None else seconds)
        self._signal_group(signal.SIGKILL)  # what is left of the group, if anything is
        self._collect()
        return self._popen.returncode

    def written(self) -> str:
        """What it has written since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def _signal_group(self, number: signal.Signals) -> None:
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, number)

    def _collect(self) -> None:
        if self._popen is not None:
            self._popen.wait()
            self._guard.remove(self._popen.pid)


def _some_thread_runs(group: int) -> bool:
    """Of the process group: a signal that stops it takes a moment to reach all of its threads."""
    for stat in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
            state, _, its_group = stat.read_text().rsplit(")", 1)[1].split()[:3]
            if int(its_group) == group and state not in "TtZX":
                return True
    return False


class Supervisor:
    """Starts processes and ends them all. `logs` is created; logs of an earlier run are emptied."""

    def __init__(self, logs: Path, env: Mapping[str, str] | None = None) -> None:
        self.logs = logs
        self.env = dict(os.environ if env is None else env)
        self.processes: list[Process] = []
        logs.mkdir(parents=True, exist_ok=True)
        self._guard = Guard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def guardian(self) -> int:
        """Its pid."""
        return self._guard.pid

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        ready: str | None = None,
        stop_seconds: float = STOP_SECONDS,
    ) -> Process:
        """Start `command`, with `env` on top of the supervisor's. `ready`: a pattern in its log (see `wait_ready`)."""
        process = self.add(name, command, env=env, ready=ready, stop_seconds=stop_seconds)
        process.start()
        return process

    def add(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        ready: str | None = None,
        stop_seconds: float = STOP_SECONDS,
    ) -> Process:
        """As `start`, for a process that is started later."""
        log = self.logs / f"{name}.log"
        log.write_bytes(b"")
        process = Process(
            name,
            command,
            log=log,
            # Under its name in pg_stat_activity, too: whoever looks at the database knows whose connection it is.
            env=self.env | {"PGAPPNAME": name} | dict(env or {}),
            guard=self._guard,
            ready=ready,
            stop_seconds=stop_seconds,
        )
        self.processes.append(process)
        return process

    def run(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, capture: bool = True) -> str:
        """Run `command` to its end; returns what it wrote to standard output. Raises CommandFailed.

        Without `capture` it writes to the terminal of this process.
        """
        stream = subprocess.PIPE if capture else None
        popen = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=self.env | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            text=True,
            start_new_session=True,
        )
        self._guard.add(popen.pid)
        try:
            out, err = popen.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)  # an interrupted one, or what it left behind
            popen.wait()
            self._guard.remove(popen.pid)
        if popen.returncode:
            raise CommandFailed(command, popen.returncode, err or out or "")
        return out or ""

    def check(self) -> None:
        """Raises ProcessDied if one of them ended by itself."""
        for process in self.processes:
            process.check()

    def end(self, processes: Sequence[Process]) -> None:
        """End some of them: every one is asked at once, then waited for."""
        for process in processes:
            process.ask_to_stop()
        for process in processes:
            process.terminate()

    def stop(self) -> None:
        """End all. Nothing can be started afterwards."""
        self.end(self.processes)
        self._guard.close()
