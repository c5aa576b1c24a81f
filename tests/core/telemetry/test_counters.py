"""Counters of many processes add up in Redis, and lose nothing while it is away."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import redis as redis_module
from redis import Redis

from core.telemetry import counters
from core.telemetry.counters import Counter, Histogram, cumulated, flush, read

SENT = Counter("test_sent_total", "Sent.", ("rail", "outcome"))
SECONDS = Histogram("test_seconds", "Seconds.", ("rail",), (0.1, 1))


@pytest.fixture(autouse=True)
def _empty(redis: Redis) -> None:
    """What earlier tests have counted in this process is theirs."""
    flush()
    redis.flushdb()


def test_what_is_counted_adds_up(redis: Redis) -> None:
    SENT.add("marketing", "accepted", by=100)
    SENT.add("marketing", "accepted", by=50)
    SENT.add("transactional", "failed")
    SENT.add("transactional", "accepted", by=0)
    flush()
    SENT.add("marketing", "accepted")
    flush()
    flush()
    assert read(redis)["test_sent_total"] == {
        ("marketing", "accepted"): {"": 151},
        ("transactional", "failed"): {"": 1},
    }


def test_a_histogram_is_cumulated_up_to_infinity(redis: Redis) -> None:
    SECONDS.observe("marketing", seen=[0.05, 0.1, 0.5, 7.0])
    flush()
    slots = read(redis)["test_seconds"]["marketing",]
    assert list(cumulated(SECONDS, slots)) == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert slots["sum"] == pytest.approx(7.65)


def test_threads_lose_nothing(redis: Redis) -> None:
    def count() -> None:
        for _ in range(500):
            SENT.add("marketing", "accepted")
            SECONDS.observe("marketing", seen=[0.5])

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        flush()
    for thread in threads:
        thread.join()
    flush()
    found = read(redis)
    assert found["test_sent_total"]["marketing", "accepted"][""] == 4000
    assert found["test_seconds"]["marketing",] == {"1": 4000, "sum": 2000}


def test_a_forked_process_counts_its_own_and_not_its_parent_s(redis: Redis) -> None:
    SENT.add("marketing", "accepted", by=7)  # not yet carried away: the parent's
    child = os.fork()
    if child == 0:
        try:
            SENT.add("marketing", "accepted", by=2)
            flush()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert read(redis)["test_sent_total"]["marketing", "accepted"][""] == 2
    flush()
    assert read(redis)["test_sent_total"]["marketing", "accepted"][""] == 9


def test_with_redis_away_it_is_kept(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    SENT.add("marketing", "accepted", by=3)
    nobody: Any = Redis(host="127.0.0.1", port=1)
    with monkeypatch.context() as patch:
        patch.setattr(counters, "quick_client", lambda: nobody)
        with pytest.raises(redis_module.RedisError):
            flush()
        SENT.add("marketing", "accepted", by=4)
    flush()
    assert read(redis)["test_sent_total"]["marketing", "accepted"][""] == 7
    nobody.close()


def test_it_is_carried_away_by_itself(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    carried = threading.Event()
    monkeypatch.setattr(counters, "FLUSH_SECONDS", 0.01)
    flush_now = counters._buffer.flush

    def watched() -> None:
        flush_now()
        carried.set()

    monkeypatch.setattr(counters._buffer, "flush", watched)
    SENT.add("marketing", "accepted")
    assert carried.wait(10)
    assert read(redis)["test_sent_total"]["marketing", "accepted"][""] == 1


def test_labels_are_given_whole() -> None:
    with pytest.raises(AssertionError, match="has the labels"):
        SENT.add("marketing")
