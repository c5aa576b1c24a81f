"""How deep the rails were while it ran: one question a second, of indexes that hold nothing but due sends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds between two looks, and how much longer than a look the pause after it is: with a million due sends a look takes
#: a tenth of a second, and what is measured must not notice it.
_EVERY = 1.0
_REST = 50.0


@dataclass(frozen=True, slots=True)
class Depth:
    """Sends that were due and not yet claimed. `at`: seconds since the epoch, by the database's clock."""

    at: float
    transactional: int
    marketing: int


class DepthSampler:
    """`look` asks the database. Call `sample` often: it looks when it is time to."""

    def __init__(self, look: Callable[[], Depth]) -> None:
        self._look = look
        self._next = float("-inf")
        self.depths: list[Depth] = []

    def sample(self) -> None:
        if time.monotonic() >= self._next:
            self.take()

    def take(self) -> None:
        """Look now."""
        started = time.monotonic()
        self.depths.append(self._look())
        took = time.monotonic() - started
        self._next = started + max(_EVERY, _REST * took)
