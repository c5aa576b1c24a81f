"""The gate in front of a consumer: closed, it fetches nothing and gives back what it has fetched.

Whoever decides flips it; the consumer only asks. A gate belongs to one queue in one process.
"""

from __future__ import annotations

import threading


class Gate:
    """Starts open. Safe from any thread; opening and closing twice is the same as once."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._mutex = threading.Lock()
        self._locked = False

    def is_open(self) -> bool:
        return self._open.is_set()

    def open(self) -> None:
        with self._mutex:
            if not self._locked:
                self._open.set()

    def close(self) -> None:
        self._open.clear()

    def lock(self) -> None:
        """Close it for good, whoever opens it: the process is stopping."""
        with self._mutex:
            self._locked = True
            self._open.clear()

    def wait_open(self, seconds: float) -> bool:
        """Wait until it is open, `seconds` at most. Returns whether it is."""
        return self._open.wait(seconds)
