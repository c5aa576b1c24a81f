"""The near end of `devtools.bench.inside`, or of a module that serves as it does: calls into a process that has Django, on
the lab's database.

The bench itself must not load the settings: it would start servers of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from devtools.processes import CHECKOUT


class RemoteFailed(RuntimeError):
    """A call raised; the message is the far end's."""


class Remote:
    """Ends with its `with` block, and with this process (its input ends)."""

    def __init__(self, env: Mapping[str, str], log: Path, module: str = "devtools.bench.inside") -> None:
        self._log = log.open("w")
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=CHECKOUT,
            env={**env, "LOG_LEVEL": "WARNING"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        if kind is not None:
            self._popen.kill()  # a call may be in hand that nobody waits for any more
        self._popen.stdin.close()
        self._popen.wait()
        self._popen.stdout.close()
        self._log.close()

    def call(self, name: str, **arguments: Any) -> Any:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            self._popen.stdin.write(json.dumps([name, arguments]) + "\n")
            self._popen.stdin.flush()
            line = self._popen.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RemoteFailed(f"The helper ended during {name}. See {self._log.name}.")
        answer = json.loads(line)
        if "error" in answer:
            raise RemoteFailed(f"{name}: {answer['error']}. See {self._log.name}.")
        return answer["value"]
