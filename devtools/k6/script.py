"""One run of a script in the folder `k6`, as a process of its own, and what it wrote down of its calls."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from devtools.processes import CHECKOUT, ProcessDied, Supervisor

FOLDER = CHECKOUT / "k6"
#: k6's exit code when a call failed or was late, and the run was whole.
_THRESHOLDS_CROSSED = 99
_LOOK_SECONDS = 0.1
#: Nothing is reported, looked up or listened to: k6 talks to the base URL alone.
_FLAGS = (
    "--no-usage-report",
    "--address",
    "",
    "--quiet",
    "--no-color",
    "--log-format",
    "raw",
    "--summary-mode",
    "compact",
)


@dataclass(frozen=True, slots=True)
class Posted:
    """One call that submits one send. `kind`: what the script calls it. `send_id` is None unless the answer was 202."""

    tenant: str
    kind: str
    answer: str
    send_id: str | None


class Script:
    """From `with` on it runs; leaving the block ends it. `env` is all that it is told, keys too, and nothing of this process's.

    `log` tells of its calls, with no key in it; `summary` is k6's own, as JSON, there when it has ended.
    """

    def __init__(self, k6: Path, name: str, *, logs: Path, env: Mapping[str, str], summary: Path) -> None:
        self._command = [str(k6), "run", *_FLAGS, "--summary-export", str(summary), str(FOLDER / f"{name}.js")]
        self._name = f"k6-{name}"
        self._logs = logs
        # HOME: the user's k6 has a configuration file there, which is not for this.
        self._env = {"PATH": os.defpath, "HOME": str(logs), "RECORD": "1", **env}
        self.summary = summary

    def __enter__(self) -> Self:
        # Not the stack's supervisor: there, a process that ends by itself has died.
        self._supervisor = Supervisor(self._logs, self._env)
        self._process = self._supervisor.start(self._name, self._command, ready=r"(?m)^record ")
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self._supervisor.stop()

    def begun(self, seconds: float) -> None:
        """Return once it has written down its first call: what it prepares, and uploads, is done. Raises ProcessDied."""
        self._process.wait_ready(seconds)

    def ended(self, meanwhile: Callable[[], None]) -> bool:
        """Return when it has ended: whether every call succeeded, and in time. Raises ProcessDied if it could not run."""
        while self._process.running:
            meanwhile()
            time.sleep(_LOOK_SECONDS)
        if self._process.exit_code not in (0, _THRESHOLDS_CROSSED):
            raise ProcessDied(self._process, f"ended with exit code {self._process.exit_code}")
        return self._process.exit_code == 0

    def posted(self) -> Iterator[Posted]:
        for line in self.records():
            if "answer" in line:
                yield Posted(line["tenant"], line["kind"], line["answer"], line["id"])

    def records(self) -> Iterator[dict[str, Any]]:
        for line in self._process.written().splitlines():
            if line.startswith("record "):
                yield json.loads(line.removeprefix("record "))
