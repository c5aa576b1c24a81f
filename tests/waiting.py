"""For what gives no signal: the ledger, Redis, a log."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    true: Callable[[], object], seconds: float = 60.0, *, told: Callable[[], object] = lambda: "not in time"
) -> None:
    """Look again and again; return once it is `true`. `told`: what a failure shows."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, told()
        time.sleep(0.01)
