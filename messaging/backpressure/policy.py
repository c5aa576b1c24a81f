"""At which depth of the transactional rail its channel's marketing yields, and when it goes on. Nothing here looks at a clock.

Two policies. `Fixed`: two counts. `Adaptive`: the wait that the depth stands for at the provider's rate, so that one
setting holds for a provider with ten requests a second and for one with a thousand (docs/decisions/0012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Seconds of waiting that login codes are allowed: from there on marketing yields.
TARGET = 1.0
#: Sends. No policy waits for more: counting stays cheap, and a fast provider's second can be a very deep queue.
CEILING = 5_000
#: Seconds for which marketing stands still while the depth cannot be read.
BLIND_SECONDS = 60.0
#: After that, how long the gate is open, and how often: a trickle instead of nothing for ever.
TRICKLE_SECONDS = 1.0
TRICKLE_EVERY = 10.0
#: Seconds between two looks: while there is a depth that may matter, while marketing works, and while it has nothing to do.
DEEP, WORKING, IDLE = 0.1, 0.25, 1.0
#: Where a product of floats is a whole number but for its last bits, it is that number.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Marks:
    """In sends: yield at `high` and above, go on at `low` and below; in between, stay as you are. low < high."""

    high: int
    low: int


def expected_wait(depth: int, max_batch: int, refill: float) -> float:
    """Seconds until the last of `depth` sends has its request."""
    return math.ceil(depth / max_batch) / refill


def fixed(high: int, low: int) -> Marks:
    return Marks(high, low)


def adaptive(target: float, low: float, ceiling: int, *, max_batch: int, refill: float) -> Marks:
    """Yield when the expected wait is longer than `target` seconds, go on when it is at most `low`.

    Never while one request would take all there is (yielding cannot make that faster), and always at `ceiling` sends.
    """
    high = min(ceiling, max(1, math.floor(target * refill + _ROUNDING)) * max_batch + 1)
    resume = max(math.floor(low * refill + _ROUNDING) * max_batch, max_batch // 2)
    return Marks(high, min(high - 1, resume))


def yields(now: bool, depth: int, marks: Marks) -> bool:
    """Whether to yield, given whether we do `now`."""
    return depth >= marks.high or (now and depth > marks.low)


def blind_yields(seconds: float) -> bool:
    """Whether to yield when the depth could not be read for `seconds`: yes for a minute, then all but a trickle."""
    return seconds < BLIND_SECONDS or (seconds - BLIND_SECONDS) % TRICKLE_EVERY >= TRICKLE_SECONDS


@dataclass(frozen=True, slots=True)
class Fixed:
    high: int
    low: int

    def marks(self, *, max_batch: int, refill: float) -> Marks:
        return fixed(self.high, self.low)


@dataclass(frozen=True, slots=True)
class Adaptive:
    target: float = TARGET
    low: float = TARGET / 2
    ceiling: int = CEILING

    def marks(self, *, max_batch: int, refill: float) -> Marks:
        return adaptive(self.target, self.low, self.ceiling, max_batch=max_batch, refill=refill)


Policy = Fixed | Adaptive
