"""Marketing workers yield when transactional depth crosses the threshold and resume after: with real processes.

No transactional worker runs while it is tested, and the depth is moved by pausing a tenant: so it is what the test says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from redis import Redis

from core.governor.client import Governor
from core.models import Tenant
from core.telemetry import counters
from devtools.stack import Stack, url_of
from messaging.backpressure.state import YieldState, yield_state
from messaging.domain.rails import Channel, Rail, queue_name
from messaging.models import Batch
from messaging.services.control import pause_tenant_lane, resume_tenant_lane
from messaging.telemetry.counted import SENDS
from tests.devtools.process_tree import descendants
from tests.factories import make_tenant, statuses, submit_some
from tests.rig import seed_buckets
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

QUEUE = f"dramatiq:{queue_name(Channel.EMAIL, Rail.MARKETING)}"
PROCESSES = 2
CODES, NEWS = 40, 6_000
MARKS = {"email": {"policy": "fixed", "high": 30, "low": 10}}


@pytest.fixture
def codes(transactional_db: None) -> Tenant:
    """The tenant of the login codes; its lane is paused, so that they wait and do not count."""
    # Ten requests a second: leaders wait for tokens when the gate closes.
    seed_buckets(rate=10.0, capacity=1.0)
    tenant = make_tenant("codes")
    submit_some(tenant, CODES)
    pause_tenant_lane(tenant, Channel.EMAIL, Rail.TRANSACTIONAL)
    return tenant


@pytest.fixture
def stack(codes: Tenant, redis: Redis, tmp_path: Path) -> Iterator[Stack]:
    with Stack(
        data_dir=tmp_path,
        database_url=url_of(connection.settings_dict),
        redis_url=settings.REDIS_URL,
        sandbox_flags=["--rate", "0", "--latency-ms", "150"],
        web=False,
        workers={"marketing": PROCESSES},
        env={"MESSAGING_YIELD": json.dumps(MARKS)},
    ) as stack:
        yield stack


_until = partial(until, told=statuses)


def _state(redis: Redis) -> YieldState:
    return yield_state(Channel.EMAIL, redis)


def _all(redis: Redis, *, yielding: bool) -> bool:
    told = [process.yielding for process in _state(redis).processes]
    return told == [yielding] * PROCESSES


def _held(redis: Redis) -> int:
    """Tickets that a worker has fetched and not acknowledged or given back."""
    return int(redis.hlen(f"{QUEUE}.msgs")) - int(redis.llen(QUEUE))


def _accepted(redis: Redis) -> dict[str, float]:
    return {labels[1]: slots[""] for labels, slots in counters.read(redis).get(SENDS.name, {}).items()}


def _pids(stack: Stack) -> list[set[int]]:
    return [{worker.pid} | descendants(worker.pid) for worker in stack.workers("marketing")]


def test_marketing_yields_when_transactional_depth_crosses_the_threshold_and_resumes_after(
    stack: Stack, redis: Redis, codes: Tenant
) -> None:
    governor = Governor(redis, "resend")
    pids = _pids(stack)
    _until(lambda: _all(redis, yielding=False))
    for i in range(5):
        submit_some(make_tenant(f"news-{i}"), NEWS // 5, category="marketing")

    requests = 0
    for _ in range(11):
        # It works: what goes out now was granted now.
        requests = stack.sandbox.wait(requests=requests + 2, timeout=60)["requests_received"]
        resume_tenant_lane(codes, Channel.EMAIL, Rail.TRANSACTIONAL)
        _until(lambda: _all(redis, yielding=True))

        # The yield has begun. What was granted by now is sent and recorded; a leader that was asking at this moment may get its
        # answer, and after that no token is taken any more.
        begun = governor.spent()
        _until(lambda: _held(redis) == 0 and "sending" not in statuses())
        granted = governor.spent()
        assert granted <= begun + PROCESSES
        state = _state(redis)
        assert (state.why, state.depth, state.high, state.low) == ("depth", 30, 30, 10)
        with pytest.raises(TimeoutError):
            stack.sandbox.wait(requests=granted + 1, timeout=0.5)
        requests = stack.sandbox.stats()["requests_received"]
        assert requests == governor.spent() == granted
        # Every ticket is back in the queue, and there is one: it goes on by itself.
        assert redis.llen(QUEUE) >= 1
        assert _held(redis) == 0

        pause_tenant_lane(codes, Channel.EMAIL, Rail.TRANSACTIONAL)
        _until(lambda: _all(redis, yielding=False))
    stack.sandbox.wait(requests=requests + 1, timeout=60)
    stack.check()
    assert _pids(stack) == pids

    # A worker that starts while the rail is deep fetches nothing until it is not.
    resume_tenant_lane(codes, Channel.EMAIL, Rail.TRANSACTIONAL)
    _until(lambda: _all(redis, yielding=True))
    stack.start_worker("marketing").wait_ready()
    _until(lambda: [p.yielding for p in _state(redis).processes] == [True] * (PROCESSES + 1))
    granted = governor.spent()
    with pytest.raises(TimeoutError):
        stack.sandbox.wait(requests=granted + 1, timeout=0.5)

    # The codes are sent, and then everything else, once.
    stack.start_worker("transactional").wait_ready()
    seed_buckets(rate=1000.0)
    _until(lambda: statuses() == {"sent": CODES + NEWS})
    stats = stack.sandbox.stats()
    assert (stats["emails_accepted"], stats["send_ids"], stats["doubles"]) == (CODES + NEWS, CODES + NEWS, 0)
    assert set(Batch.objects.values_list("state", flat=True)) == {"accepted"}
    # Four worker processes of two pools have counted it, each its own part.
    _until(lambda: _accepted(redis) == {"transactional": CODES, "marketing": NEWS})


def test_a_state_is_withdrawn_at_the_end_and_survives_a_restart_of_the_connection(stack: Stack, redis: Redis) -> None:
    _until(lambda: _all(redis, yielding=False))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND datname = current_database()"
        )
    submit_some(make_tenant("news"), 50, category="marketing")
    stack.sandbox.wait(emails=50, timeout=60)
    _until(lambda: _all(redis, yielding=False))
    first, second = stack.workers("marketing")
    assert first.terminate() == 0
    assert len(_state(redis).processes) == PROCESSES - 1
    second.kill()  # nobody withdraws it: it runs out
    _until(lambda: _state(redis).processes == ())
