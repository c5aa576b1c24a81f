"""Limits and memory of keys, on an injected clock."""

from __future__ import annotations

import json
from typing import Any

import pytest

from devtools.sandbox.limits import DAY_S, DailyQuota, FixedWindow, Limiter, TokenBucket, Unlimited, make_limiter
from devtools.sandbox.messages import Answer, Request
from devtools.sandbox.options import Options
from devtools.sandbox.provider import Provider


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def allowed(limiter: Limiter, tries: int) -> int:
    return sum(limiter.take().allowed for _ in range(tries))


def test_fixed_window_lets_the_rate_through_and_opens_anew_after_a_second(clock: Clock) -> None:
    limiter = FixedWindow(10, clock)
    assert allowed(limiter, 25) == 10
    clock.now += 0.999
    assert allowed(limiter, 5) == 0
    clock.now += 0.001
    assert allowed(limiter, 25) == 10


def test_fixed_window_opens_with_the_first_request(clock: Clock) -> None:
    limiter = FixedWindow(2, clock)
    clock.now += 0.7
    assert allowed(limiter, 2) == 2
    clock.now += 0.5
    assert allowed(limiter, 1) == 0


def test_bucket_starts_full_and_refills_evenly(clock: Clock) -> None:
    limiter = TokenBucket(10, 3, clock)
    assert allowed(limiter, 5) == 3
    clock.now += 0.1
    assert allowed(limiter, 5) == 1
    clock.now += 60
    assert allowed(limiter, 5) == 3


def test_headers_of_an_allowed_and_of_a_refused_request(clock: Clock) -> None:
    limiter = FixedWindow(2, clock)
    assert dict(limiter.take().headers) == {
        "ratelimit-limit": "2",
        "ratelimit-remaining": "1",
        "ratelimit-reset": "1",
        "ratelimit-policy": "2;w=1",
    }
    limiter.take()
    refused = dict(limiter.take().headers)
    assert refused["ratelimit-remaining"] == "0"
    assert refused["retry-after"] == "1"


def test_bucket_headers_tell_whole_tokens(clock: Clock) -> None:
    limiter = TokenBucket(2, 5, clock)
    assert dict(limiter.take().headers)["ratelimit-remaining"] == "4"
    allowed(limiter, 4)
    refused = dict(limiter.take().headers)
    assert (refused["ratelimit-remaining"], refused["ratelimit-reset"], refused["retry-after"]) == ("0", "3", "1")


@pytest.mark.parametrize(
    ("options", "kind", "at_once"),
    [
        (Options(rate=0), Unlimited, 1000),
        (Options(rate=10), FixedWindow, 10),
        (Options(rate=10, window="bucket"), TokenBucket, 10),
        (Options(rate=10, window="bucket", burst=2), TokenBucket, 2),
    ],
)
def test_options_choose_the_limiter(options: Options, kind: type, at_once: int, clock: Clock) -> None:
    limiter = make_limiter(options, clock)
    assert isinstance(limiter, kind)
    assert allowed(limiter, 1000) == at_once


def test_quota_counts_emails_of_the_last_24_hours(clock: Clock) -> None:
    quota = DailyQuota(100, clock)
    assert quota.take(60)
    clock.now += DAY_S / 2
    assert not quota.take(41)
    assert quota.take(40)
    assert quota.headers() == (("x-resend-daily-quota", "100"),)
    clock.now += DAY_S / 2
    assert quota.headers() == (("x-resend-daily-quota", "40"),)
    assert quota.take(60)


def request(key: str, subject: str = "News") -> Request:
    item = {"from": "a@acme.dev", "to": "b@mail.dev", "subject": subject, "text": "x"}
    headers = {"user-agent": "test", "authorization": "Bearer re_sandbox", "idempotency-key": key}
    return Request("POST", "/emails/batch", {}, headers, json.dumps([item]).encode())


def delivered(answer: Answer) -> Any:
    if answer.done:
        answer.done()
    return json.loads(answer.body)


def test_an_idempotency_key_is_kept_for_24_hours(clock: Clock) -> None:
    provider = Provider(Options(rate=0, latency_ms=0), clock, clock)
    first = delivered(provider.handle(request("k")))
    clock.now += DAY_S - 1
    assert delivered(provider.handle(request("k"))) == first
    assert provider.handle(request("k", "Other")).status == 409
    clock.now += 1
    assert delivered(provider.handle(request("k"))) != first
    assert provider.log.total == 2
