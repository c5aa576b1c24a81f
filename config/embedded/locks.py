"""File locks that tell whether a process, or any of its descendants, is alive.

The kernel drops the lock when the last process that holds the descriptor is gone, so there is no pid to look up, no
pid to mistake for another process's, and nothing stale to clean up after a crash.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType


@contextlib.contextmanager
def lock(path: Path, *, seconds: float | None = None) -> Iterator[int]:
    """Hold the lock at `path`; yields the descriptor.

    `seconds`: how long to wait before `TimeoutError`; it uses SIGALRM and is for a process of our own, main thread
    only. None waits for as long as the holder lives.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if seconds is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            with _deadline(seconds):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    def expired(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
