"""The middleware in a worker of this process: which queues it gates, what it says of odd ones, and that it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import dramatiq
import pytest
from django.db import connections
from dramatiq.middleware import MiddlewareError
from redis import Redis

import messaging.tasks  # noqa: F401 — declares the queues
from core.broker.broker import RailBroker
from core.broker.gate import Gate
from messaging.backpressure.middleware import RailPriorityMiddleware
from messaging.backpressure.state import TTL, yield_state
from messaging.domain.rails import Channel, Rail, queue_name
from tests.core.broker.rig import Loop, until_blocked
from tests.factories import insert_raw, make_tenant
from tests.rig import seed_buckets
from tests.waiting import until

MARKETING, TRANSACTIONAL = (queue_name(Channel.EMAIL, rail) for rail in (Rail.MARKETING, Rail.TRANSACTIONAL))


def _until(true: Callable[[], bool]) -> None:
    until(true, 10)


@pytest.fixture
def broker(transactional_db: None, redis: Redis) -> RailBroker:
    seed_buckets(rate=10.0)
    found = dramatiq.get_broker()
    assert isinstance(found, RailBroker)
    return found


@pytest.fixture
def boot(broker: RailBroker) -> Iterator[Callable[..., RailPriorityMiddleware]]:
    """Boot a worker that was started with these queues (None: all there are)."""
    started: list[RailPriorityMiddleware] = []

    def boot(*queues: str) -> RailPriorityMiddleware:
        middleware = RailPriorityMiddleware()
        started.append(middleware)
        middleware.before_worker_boot(broker, _worker(*queues))
        return middleware

    yield boot
    for middleware in started:
        middleware.before_worker_shutdown(broker, _worker())
    broker.gate(MARKETING).open()
    assert [thread.name for thread in threading.enumerate() if thread.name == "rail-priority"] == []


def _worker(*queues: str) -> Any:
    return SimpleNamespace(consumer_whitelist=set(queues) or None)


def test_the_gate_is_closed_before_the_first_fetch_and_opened_by_the_first_look(
    broker: RailBroker, boot: Callable[..., RailPriorityMiddleware], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    open_gate = Gate.open
    monkeypatch.setattr(Gate, "open", lambda gate: looked.wait(10) and open_gate(gate))
    boot(MARKETING)
    assert not broker.gate(MARKETING).is_open()
    looked.set()
    assert broker.gate(MARKETING).wait_open(10)


def test_it_yields_and_resumes_by_itself_and_takes_its_state_along(
    broker: RailBroker, boot: Callable[..., RailPriorityMiddleware], redis: Redis, settings: Any
) -> None:
    settings.MESSAGING_YIELD = {"email": {"policy": "fixed", "high": 10, "low": 5}}
    middleware = boot(MARKETING)
    gate, tenant = broker.gate(MARKETING), make_tenant()
    assert gate.wait_open(10)
    message: Any = SimpleNamespace(queue_name=MARKETING)
    for _ in range(10):
        insert_raw(tenant, 10, category="transactional")
        middleware.before_process_message(broker, message)
        _until(lambda: not gate.is_open())
        tenant_sends = "UPDATE messaging_sends SET status = 'expired' WHERE status = 'queued'"
        with connections["default"].cursor() as cursor:
            cursor.execute(tenant_sends)
        assert gate.wait_open(10)
    assert len(yield_state(Channel.EMAIL, redis).processes) == 1
    middleware.before_worker_shutdown(broker, _worker())
    assert yield_state(Channel.EMAIL, redis).processes == ()


def test_a_first_job_ends_the_rest_of_an_idle_watch(
    broker: RailBroker, boot: Callable[..., RailPriorityMiddleware], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MESSAGING_YIELD = {"email": {"policy": "fixed", "high": 10, "low": 5}}
    monkeypatch.setattr("messaging.backpressure.keeper.IDLE", 60.0)  # it would not look by itself
    middleware = boot(MARKETING)
    assert broker.gate(MARKETING).wait_open(10)
    insert_raw(make_tenant(), 10, category="transactional")
    middleware.before_process_message(broker, cast("Any", SimpleNamespace(queue_name=MARKETING)))
    _until(lambda: not broker.gate(MARKETING).is_open())


def test_an_idle_marketing_worker_costs_two_commands_a_second_with_all_it_does(
    broker: RailBroker, boot: Callable[..., RailPriorityMiddleware], redis: Redis
) -> None:
    """A consumer takes five in four seconds; what the worker tells of its yield fits into the rest."""
    boot(MARKETING)
    assert broker.gate(MARKETING).wait_open(10)
    with Loop(broker.consume(MARKETING, prefetch=8)):
        until_blocked(redis)
        redis.config_resetstat()
        started = time.monotonic()
        time.sleep(TTL)
        seconds = time.monotonic() - started
    stats = {name: stat["calls"] for name, stat in redis.info("commandstats").items()}
    assert "cmdstat_hgetall" in stats, "its state was told again"
    ours = sum(calls for name, calls in stats.items() if name not in ("cmdstat_info", "cmdstat_config"))
    assert ours <= 2 * seconds + 4  # 4: a look, or a telling, that falls on the edge


def test_a_transactional_worker_has_no_thread_and_an_open_gate(
    broker: RailBroker, boot: Callable[..., RailPriorityMiddleware], caplog: pytest.LogCaptureFixture
) -> None:
    before = threading.active_count()
    boot(TRANSACTIONAL)
    assert threading.active_count() == before
    assert broker.gate(TRANSACTIONAL).is_open()
    assert broker.gate(MARKETING).is_open()
    assert caplog.records == []


@pytest.mark.parametrize("queues", [(), (MARKETING, TRANSACTIONAL)], ids=["all", "both"])
def test_both_rails_in_one_process_work_and_are_told_of(
    broker: RailBroker,
    boot: Callable[..., RailPriorityMiddleware],
    caplog: pytest.LogCaptureFixture,
    queues: tuple[str, ...],
) -> None:
    boot(*queues)
    assert broker.gate(MARKETING).wait_open(10)
    assert broker.gate(TRANSACTIONAL).is_open()
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", "worker_serves_both_rails")]


def test_a_queue_that_does_not_exist_is_named(
    boot: Callable[..., RailPriorityMiddleware], caplog: pytest.LogCaptureFixture
) -> None:
    boot("notif.email.marketting")
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("ERROR", "worker_unknown_queues")
    assert record.queues == ["notif.email.marketting"]  # type: ignore[attr-defined]
    assert MARKETING in record.known  # type: ignore[attr-defined]


def test_a_wrong_policy_keeps_the_worker_from_starting(broker: RailBroker, settings: Any) -> None:
    settings.MESSAGING_YIELD = {"email": {"policy": "hopeful"}}
    with pytest.raises(MiddlewareError, match="hopeful"):
        RailPriorityMiddleware().before_worker_boot(broker, _worker(MARKETING))
    broker.gate(MARKETING).open()
