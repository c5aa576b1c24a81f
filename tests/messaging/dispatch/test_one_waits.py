"""Leaders of several processes that wait for the same token: one of them looks, and it is never long before somebody does."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import redis as redis_py
from redis import Redis

from core.governor.client import Bucket, Governor, Limits, Want
from core.security.ids import new_id
from messaging.dispatch import one_waits
from messaging.domain.rails import Rail
from tests.factories import make_tenant, submit_some
from tests.rig import Rig, seed_buckets

PLACE = ("resend", "email", "transactional")
KEY = "notif:waits:resend:email:transactional"


def wait(me: str, seconds: float, slept: list[float], redis: Redis | None = None) -> None:
    """Sleeps in no time; with `redis`, what others have left ends meanwhile."""

    def sleep(time: float) -> None:
        slept.append(time)
        if redis:
            redis.delete(KEY)

    one_waits.wait(PLACE, seconds, sleep=sleep, go_on=lambda: True, me=me)


def test_the_first_waits_for_its_token_and_the_others_for_the_end_of_its_mark(redis: Redis) -> None:
    first: list[float] = []
    wait("a", 0.5, first)
    assert first == [0.5]
    wait("a", 0.7, first)  # the same process again
    assert first == [0.5, 0.7]
    behind: list[float] = []
    wait("b", 0.7, behind, redis)
    assert len(behind) == 1
    assert 0.5 < behind[0] <= 0.7 + one_waits.SLACK + 0.001
    assert redis.get(KEY) == b"b"  # it looks now, and nobody else
    wait("c", 0.01, behind)  # a short wait is its own
    assert behind[1:] == [0.01]


def test_who_knows_of_an_earlier_token_waits_behind_nobody(redis: Redis) -> None:
    """A circuit that has just been closed: whoever was told to wait for its next probe is not in anybody's way."""
    wait("a", 2.0, [])
    slept: list[float] = []
    wait("b", 0.1, slept)
    assert (slept, redis.get(KEY)) == ([0.1], b"b")


def test_who_is_behind_ends_when_its_process_may_not_begin_anything(redis: Redis) -> None:
    wait("a", 1.0, [])
    answers = [True, False]
    slept: list[float] = []
    one_waits.wait(PLACE, 1.0, sleep=slept.append, go_on=lambda: answers.pop(0), me="b")
    assert (len(slept), answers) == (1, [])


def test_with_redis_away_everybody_waits_for_himself(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> Redis:
        raise redis_py.ConnectionError

    monkeypatch.setattr(one_waits, "quick_client", away)
    slept: list[float] = []
    wait("a", 0.5, slept)
    assert slept == [0.5]


def test_a_dozen_leaders_look_about_as_often_as_there_are_tokens(redis: Redis) -> None:
    governor, limits = Governor(redis, "resend"), Limits(Bucket(1.2, 9.8))
    end = time.monotonic() + 2.0
    looks, grants = [0] * 12, [0] * 12

    def lead(number: int) -> None:
        while time.monotonic() < end:
            looks[number] += 1
            grant = str(new_id())
            want = Want(1, 0, 1, Bucket(1000, 1000))
            found = governor.acquire(
                grant=grant, batch=grant, rail=Rail.TRANSACTIONAL, limits=limits, max_batch=100, wants=[want]
            )
            if found.granted:
                grants[number] += 1
            else:
                one_waits.wait(PLACE, found.wait, sleep=time.sleep, go_on=lambda: True, me=str(number))

    threads = [threading.Thread(target=lead, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(looks) <= 3 * sum(grants) + len(looks), (
        "each grant: the look that gets it, the next one, and one too early"
    )


def test_a_turn_that_waits_for_a_token_waits_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    seed_buckets(rate=9.8)
    waits: list[tuple[str, str, str]] = []
    once = one_waits.wait

    def noted(place: tuple[str, str, str], seconds: float, **how: Any) -> None:
        waits.append(place)
        once(place, seconds, **how)

    monkeypatch.setattr(one_waits, "wait", noted)
    submit_some(make_tenant(), 1)
    rig.redis.hset(rig.governor.keys[0], mapping={"tokens": "0.1", "at": repr(time.time())})
    assert rig.turn() is not None
    assert set(waits) == {PLACE}
