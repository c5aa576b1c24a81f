"""Many processes at once, counted exactly, and what one call may cost."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from django.conf import settings
from redis import Redis

from core.governor.client import MARK_SLACK, Event, Governor, Want
from tests.core.governor.hammer import HAMMERED
from tests.core.governor.rig import PLENTY, TimedGovernor, want

ROOT = Path(__file__).parents[3]
RAILS = ["transactional"] * 2 + ["marketing"] * 6
SECONDS = 2


@contextmanager
def hammering(redis: Redis, provider: str) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """The processes, each of them connected and waiting for an element of the list `go`."""
    command = [sys.executable, "-m", "tests.core.governor.hammer", settings.REDIS_URL, provider]
    workers = [subprocess.Popen([*command, r, str(SECONDS)], cwd=ROOT, stdout=subprocess.PIPE) for r in RAILS]
    try:
        for _ in workers:
            assert redis.blpop(["ready"], timeout=60), "a process did not come up"
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            assert worker.stdout
            worker.stdout.close()


def clock(redis: Redis) -> float:
    seconds, micros = redis.time()
    return seconds + micros / 1_000_000


def test_many_processes_get_exactly_what_the_limit_allows_and_the_transactional_rail_first(redis: Redis) -> None:
    governor = Governor(redis, "hammered")
    with hammering(redis, "hammered") as workers:
        begin = clock(redis)
        redis.rpush("go", *RAILS)
        told = [(rail, json.loads(worker.communicate()[0])) for rail, worker in zip(RAILS, workers, strict=True)]
        elapsed = clock(redis) - begin
    assert [worker.returncode for worker in workers] == [0] * len(RAILS)

    grants = {rail: sorted(at for r, said in told if r == rail for at, granted, _ in said if granted) for rail in RAILS}
    total = sum(len(times) for times in grants.values())
    bucket = HAMMERED.request
    assert total == governor.spent()
    assert total <= bucket.capacity + bucket.refill * elapsed
    # The level began with one token at the first grant; what it holds after the last one is what was not granted.
    tokens, at = (float(cast("bytes", value)) for value in redis.hmget(governor.keys[0], ["tokens", "at"]))
    first = min(times[0] for times in grants.values()) / 1_000_000
    assert at - first > SECONDS * 0.9
    assert total == pytest.approx(1 + bucket.refill * (at - first) - tokens, abs=0.01)
    assert tokens < bucket.capacity / 2, "the limit was used to the full"

    assert_marketing_stays_back(told, grants)


def assert_marketing_stays_back(
    told: list[tuple[str, list[tuple[int, bool, int]]]], grants: dict[str, list[int]]
) -> None:
    """From each refusal of a transactional batch to the next transactional grant (or the end of its mark)."""
    refusals = [(at, wait) for _, said in told for at, granted, wait in said if not granted]
    assert min(len(refusals), len(grants["transactional"]), len(grants["marketing"])) > 20, "there was no contest"
    for at, wait in refusals:
        mark = at + wait + MARK_SLACK * 1_000_000 - 2  # rounding
        served = next((grant for grant in grants["transactional"] if grant > at), mark)
        assert not [grant for grant in grants["marketing"] if at < grant < min(mark, served)]


@pytest.fixture
def crowded(governor: TimedGovernor) -> TimedGovernor:
    """100,000 tenants have a level."""
    level = f"990:{governor.now:.6f}:0"
    for first in range(1, 100_001, 10_000):
        governor.client.hset(governor.keys[1], mapping={str(first + n): level for n in range(10_000)})
    return governor


@contextmanager
def counting(redis: Redis) -> Iterator[dict[str, int]]:
    """Commands that Redis ran within the block, also those of the script (but for TIME, which is the test's)."""
    counts: dict[str, int] = {}
    redis.config_resetstat()
    yield counts
    stats = cast("dict[str, dict[str, int]]", redis.info("commandstats"))
    found = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    counts.update({name: calls for name, calls in found.items() if name.split("|")[0] not in ("config", "info")})


def test_a_call_costs_one_round_trip_and_the_same_commands_whatever_is_asked(crowded: TimedGovernor) -> None:
    def wants(count: int) -> list[Want]:
        return [want(tenant * 999, 100, tenant % 2) for tenant in range(1, count + 1)]

    crowded.transactional()  # from now on the script is loaded
    always = {"evalsha": 1, "zremrangebyscore": 1, "hgetall": 1, "hset": 1}
    for count in (1, 10, 100):
        crowded.advance(0.1)
        with counting(crowded.client) as counts:
            assert crowded.transactional(*wants(count)).granted
        assert counts == always | {"hmget": 1, "hset": 2, "zadd": 1}
        with counting(crowded.client) as counts:
            assert crowded.marketing(*wants(count)).reason == "global"
        assert counts == always, "a refused blast looks at no tenant"
        with counting(crowded.client) as counts:
            assert crowded.transactional(*wants(count)).reason == "global"
        assert counts == always | {"hmget": 1, "hset": 1}


def test_settling_costs_the_same_commands_too(crowded: TimedGovernor) -> None:
    for count in (1, 10, 100):
        crowded.advance(0.1)
        decision = crowded.transactional(*(want(tenant, 10) for tenant in range(1, count + 1)))
        back = tuple((tenant, 1, PLENTY) for tenant in range(1, count + 1))
        with counting(crowded.client) as counts:
            crowded.report(Event.NONE, epoch=decision.epoch, unused=True, back=back)
        assert counts == {"evalsha": 1, "zremrangebyscore": 1, "hgetall": 1, "zrem": 1, "hmget": 1, "hset": 2}
