"""Values to pixels, and where the marks on an axis go."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

_STEPS = (1, 2, 5, 10)


class Scale(Protocol):
    def __call__(self, value: float) -> float:
        """The pixel of a value; values beyond the ends are drawn at the end."""

    def ticks(self, count: int) -> list[float]:
        """About `count` round values within the ends."""


@dataclass(frozen=True, slots=True)
class Linear:
    """`low` is drawn at pixel `start`, `high` at `end`. `least`: the smallest step between ticks; 1 where only whole
    numbers mean something."""

    low: float
    high: float
    start: float
    end: float
    least: float = 0.0

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        part = (value - self.low) / span if span else 0.0
        return self.start + min(1.0, max(0.0, part)) * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        step = max(self.least, nice_step(self.high - self.low, count))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Log:
    """As Linear, by the logarithm. `low` and `high` are above 0; what is not counts as `low`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return Linear(math.log(self.low), math.log(self.high), self.start, self.end)(math.log(max(self.low, value)))

    def ticks(self, count: int) -> list[float]:
        """1, 2 and 5 of each power of ten, or the powers alone where that would be too many."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            found = [
                d * 10.0**p for p in powers for d in digits if self.low * 0.999 <= d * 10.0**p <= self.high * 1.001
            ]
            if len(found) <= count + 2:
                break
        return found


def nice_step(span: float, count: int) -> float:
    """1, 2 or 5 times a power of ten, so that `span` has at most about `count` of them."""
    if span <= 0:
        return 1.0
    rough = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in _STEPS if step * power >= rough * 0.999)


def time_unit(seconds: float) -> tuple[str, float]:
    """Name and length in seconds of the unit in which an axis of so many seconds reads best."""
    if seconds <= 300:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds <= 10_800 else ("hours", 3600.0)
