"""The last will of a supervisor: a process that ends its children when it is gone, in whatever way it went.

`python -m devtools.guardian`, started by `devtools.processes` with a pipe as its standard input. A line `+PID` puts a
process group under guard, `-PID` releases it. The end of the pipe means that the supervisor is gone, also by SIGKILL:
each leader gets SIGTERM, and after a grace the whole group gets SIGKILL. Standard library only, so that it starts in
milliseconds; in a session of its own, so that Ctrl-C in the terminal does not reach it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent

#: Seconds between SIGTERM and SIGKILL. Nobody waits for the outcome, so a worker may finish its request.
GRACE = float(os.environ.get("GUARDIAN_GRACE", "5"))
_LOOK_SECONDS = 0.05


def alive(group: int) -> bool:
    """Whether a process of the group exists (a zombie that nobody has collected counts)."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def end(groups: set[int], grace: float) -> None:
    """SIGTERM to the leaders alone: a worker's parent passes it on, and takes a second one for "at once"."""
    for leader in groups:
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, signal.SIGTERM)
            os.killpg(leader, signal.SIGCONT)  # a stopped process would not hear of it
    deadline = time.monotonic() + grace
    while any(map(alive, groups)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    end(groups, GRACE)


class Guard:
    """The supervisor's side: the guardian as a process, and the end of the pipe that stays open for the supervisor's life."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "devtools.guardian"],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def add(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        # If the guardian was killed there is nothing to take back, and the caller is about to end processes himself.
        with contextlib.suppress(BrokenPipeError):
            self._tell(f"-{group}\n")

    def close(self) -> None:
        """Let it go: it ends whatever is still under guard, by force after its grace."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait()

    def _tell(self, line: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(line.encode())
        self._popen.stdin.flush()


if __name__ == "__main__":
    main()
