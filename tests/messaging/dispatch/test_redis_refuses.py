"""A Redis that is there and takes no writes (its memory is full, it has become a replica) is a Redis that is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
import redis as redis_py
from redis import Redis

from core.broker import queues
from core.broker.broker import RailBroker
from core.broker.dead_letters import ActorDeadLetters
from core.db.faults import is_transient
from core.models import DeadLetter
from core.telemetry.redis_client import quick_client
from devtools.sandbox.process import Sandbox
from messaging import submit
from messaging.clock import run_once
from messaging.domain.rails import Channel, Rail, queue_name
from messaging.services.tickets import send_ticket
from tests.core.broker.rig import OwnRedis, message
from tests.factories import make_tenant, request, statuses
from tests.messaging.tenant_rig import BODY, Speaker
from tests.messaging.tenant_rig import make_tenant as make_shop
from tests.rig import Rig, rigged


@pytest.fixture
def own_redis(settings: Any) -> Iterator[OwnRedis]:
    """A Redis of this test's own, for everything in this process."""
    before = dramatiq.get_broker()
    with OwnRedis() as server:
        settings.REDIS_URL = server.url
        broker = RailBroker(url=server.url, middleware=[])
        for queue in before.get_declared_queues():
            broker.declare_queue(queue)
        dramatiq.set_broker(broker)
        quick_client.cache_clear()
        queues.breaker.reset()
        yield server
        dramatiq.set_broker(before)
        quick_client().close()
        quick_client.cache_clear()
        queues.breaker.reset()


@pytest.fixture
def rig(transactional_db: None, own_redis: OwnRedis, sandbox: Sandbox) -> Iterator[Rig]:
    with rigged(sandbox, own_redis.client) as rig:
        yield rig


def _fill(redis: Redis) -> Callable[[], object]:
    redis.config_set("maxmemory", "1")
    return lambda: redis.config_set("maxmemory", "0")


def _demote(redis: Redis) -> Callable[[], object]:
    redis.replicaof("127.0.0.1", "1")
    return lambda: redis.replicaof("NO", "ONE")


@pytest.mark.parametrize("refuse", [_fill, _demote])
def test_everything_goes_on_as_if_it_were_away(
    rig: Rig, settings: Any, refuse: Callable[[Redis], Callable[[], object]]
) -> None:
    settings.METRICS_TOKEN = "x" * 16
    tenant, speaker = make_tenant(), Speaker.of(make_shop())
    submit(tenant, **request(tenant))
    assert rig.turn() is not None  # scripts are loaded, connections open
    heal = refuse(rig.redis)

    started = time.monotonic()
    submit(tenant, **request(tenant, 1))
    assert time.monotonic() - started < 0.25
    assert speaker.post(BODY).status_code == 202
    assert speaker.client.get("/metrics", headers={"Authorization": "Bearer " + "x" * 16}).status_code == 200

    met = None
    try:
        rig.turn()  # with its memory full it may be served: a script that has freed something may go on
    except redis_py.RedisError as error:
        met = error
    ActorDeadLetters().after_process_message(dramatiq.get_broker(), dramatiq.MessageProxy(message()), exception=met)
    assert met is None or is_transient(met)
    assert not DeadLetter.objects.exists()
    assert set(run_once().failed) <= {"re_ticket", "tell"}

    heal()
    queues.breaker.reset()
    assert run_once().failed == ()
    rig.drain()
    assert statuses() == {"sent": 3}
    assert len(rig.accepted_ids()) == 3


def test_tickets_without_workers_are_a_few_hundred_and_no_more(rig: Rig) -> None:
    for _ in range(queues.MAX_HINTS + 20):
        assert send_ticket(Channel.EMAIL, Rail.TRANSACTIONAL)
    assert queues.depth(queue_name(Channel.EMAIL, Rail.TRANSACTIONAL)) == queues.MAX_HINTS
