"""The team-wide rate limit in requests, and the daily quota in e-mails.

Headers: https://resend.com/docs/api-reference/rate-limit, after draft-ietf-httpapi-ratelimit-headers-06. A verdict is
a pure function of the calls and the clock, which is in seconds and monotonic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from devtools.sandbox.messages import Headers
from devtools.sandbox.options import Options

Clock = Callable[[], float]

WINDOW_S = 1.0  # `ratelimit-policy: 10;w=1`
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Verdict:
    allowed: bool
    headers: Headers


class Limiter(Protocol):
    def take(self) -> Verdict: ...


class Unlimited:
    """No limit, and no headers about one."""

    def take(self) -> Verdict:
        return Verdict(True, ())


class FixedWindow:
    """`rate` requests in each one-second window. A window opens with the first request after the last one closed."""

    def __init__(self, rate: int, clock: Clock) -> None:
        self._rate, self._clock = rate, clock
        self._ends = float("-inf")
        self._used = 0

    def take(self) -> Verdict:
        now = self._clock()
        if now >= self._ends:
            self._ends, self._used = now + WINDOW_S, 0
        allowed = self._used < self._rate
        self._used += allowed
        left = self._ends - now
        return Verdict(allowed, _headers(self._rate, self._rate - self._used, left, None if allowed else left))


class TokenBucket:
    """`rate` tokens per second into a bucket of `burst`, which starts full."""

    def __init__(self, rate: int, burst: int, clock: Clock) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._at = float(burst), clock()

    def take(self) -> Verdict:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        # A billionth of a token forgives the rounding of "exactly one token later".
        allowed = self._tokens >= 1 - 1e-9
        if allowed:
            self._tokens = max(0.0, self._tokens - 1)
        full_in = (self._burst - self._tokens) / self._rate
        return Verdict(
            allowed,
            _headers(self._rate, int(self._tokens), full_in, None if allowed else (1 - self._tokens) / self._rate),
        )


def make_limiter(options: Options, clock: Clock) -> Limiter:
    if options.rate == 0:
        return Unlimited()
    if options.window == "fixed":
        return FixedWindow(options.rate, clock)
    return TokenBucket(options.rate, options.burst or options.rate, clock)


def _headers(rate: int, remaining: int, reset_s: float, retry_s: float | None) -> Headers:
    headers = (
        ("ratelimit-limit", str(rate)),
        ("ratelimit-remaining", str(remaining)),
        ("ratelimit-reset", str(max(1, ceil(reset_s)))),
        ("ratelimit-policy", f"{rate};w=1"),
    )
    return headers if retry_s is None else (*headers, ("retry-after", str(max(1, ceil(retry_s)))))


class DailyQuota:
    """E-mails in any 24 hours (the usage page calls the daily quota rolling). `limit` None counts nothing."""

    def __init__(self, limit: int | None, clock: Clock) -> None:
        self._limit, self._clock = limit, clock
        self._used = 0
        self._taken: deque[tuple[float, int]] = deque()

    def take(self, emails: int) -> bool:
        if self._limit is None:
            return True
        self._forget()
        if self._used + emails > self._limit:
            return False
        self._used += emails
        self._taken.append((self._clock(), emails))
        return True

    def headers(self) -> Headers:
        """`x-resend-daily-quota` tells what is used, not what is left."""
        if self._limit is None:
            return ()
        self._forget()
        return (("x-resend-daily-quota", str(self._used)),)

    def _forget(self) -> None:
        oldest = self._clock() - DAY_S
        while self._taken and self._taken[0][0] <= oldest:
            self._used -= self._taken.popleft()[1]
