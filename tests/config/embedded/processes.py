"""Processes that use embedded services, and exact waiting for the end of processes that are not our children."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

#: Uses the services, says what it got, stays until its standard input ends.
_CLIENT = """
import json, os, sys
from pathlib import Path
from config.embedded import command, ensure_services
ensure_services(Path("/nonexistent"), need_postgres=True, need_redis=True)
names = ("DATABASE_URL", "REDIS_URL", "EMBEDDED_CONTROL")
print(json.dumps({"env": {n: os.environ[n] for n in names}, "status": command("status")}), flush=True)
sys.stdin.read()
"""
#: The same, then becomes another program, as `manage.py rundramatiq` does.
EXEC_CLIENT = _CLIENT.replace(
    "sys.stdin.read()", "os.execv(sys.executable, [sys.executable, '-c', 'print(input(), flush=True); input()'])"
)


@dataclass
class Client:
    """A process that uses the services of one data folder."""

    process: subprocess.Popen[str]
    env: Mapping[str, str] = field(default_factory=dict)
    status: Mapping[str, int] = field(default_factory=dict)  # keeper, postgres, redis → pid

    @classmethod
    def start(
        cls, environment: Mapping[str, str], *, script: str = _CLIENT, prefix: Sequence[str] = (), wait: bool = True
    ) -> Client:
        client = cls(
            subprocess.Popen(
                [*prefix, sys.executable, "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=environment,
                start_new_session=True,  # so that a test can send Ctrl-C to it and to what it started
            )
        )
        return client.ready() if wait else client

    def ready(self) -> Client:
        """Wait until it has its services."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        answer = json.loads(line)
        self.env = answer["env"]
        servers = {name: server["pid"] for name, server in answer["status"]["servers"].items()}
        self.status = {"keeper": answer["status"]["keeper"], **servers}
        return self

    def say(self, line: str) -> str:
        """Write a line to it, return the line that it answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        """It ends by itself."""
        self.process.communicate("")

    def kill(self, number: signal.Signals) -> None:
        """A signal to it and everything in its session."""
        os.killpg(self.process.pid, number)
        self.process.communicate()


class Watch:
    """Processes by pid, pinned while they live: a pid that is used again is not mistaken for the old process."""

    def __init__(self, *pids: int) -> None:
        self._descriptors = {os.pidfd_open(pid) for pid in pids}

    def wait_gone(self, seconds: float) -> None:
        """Return when all have ended (a zombie counts as ended); AssertionError if they have not after `seconds`."""
        deadline = time.monotonic() + seconds
        while self._descriptors:
            left = max(0.0, deadline - time.monotonic())
            gone, _, _ = select.select(self._descriptors, (), (), left)
            assert gone, f"{len(self._descriptors)} processes still run after {seconds} s"
            for descriptor in gone:
                os.close(descriptor)
                self._descriptors.discard(descriptor)
