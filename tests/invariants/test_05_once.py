"""Invariant 5: a duplicate ticket, job, submit (tenant + idempotency key) or a killed worker: one send. With real workers,
killed for real."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection, connections
from redis import Redis

from core.models import Tenant
from devtools.stack import Stack, url_of
from messaging.domain.rails import Channel, Rail
from messaging.models import Batch, Send
from messaging.services.submit import submit, submit_many
from messaging.services.tickets import send_ticket
from tests.factories import make_tenant, request, statuses, submit_some
from tests.rig import seed_buckets
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    seed_buckets()
    return make_tenant("a")


@pytest.fixture
def stack(tenant: Tenant, redis: Redis, tmp_path: Path) -> Iterator[Stack]:
    with Stack(
        data_dir=tmp_path,
        database_url=url_of(connection.settings_dict),
        redis_url=settings.REDIS_URL,
        sandbox_flags=["--rate", "0", "--latency-ms", "30"],
        web=False,
    ) as stack:
        yield stack


_until = partial(until, told=statuses)


def _lapse_leases() -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE core_processed_jobs SET lease_until = now() WHERE done_at IS NULL")


def _once(stack: Stack, count: int) -> None:
    stats = stack.sandbox.stats()
    assert statuses() == {"sent": count}
    assert (stats["emails_accepted"], stats["send_ids"], stats["doubles"]) == (count, count, 0)


def test_duplicate_tickets_and_submits_send_once(stack: Stack, tenant: Tenant) -> None:
    def client() -> None:
        try:
            submit(tenant, **request(tenant), idempotency_key="one")
            send_ticket(Channel.EMAIL, Rail.TRANSACTIONAL)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(30):
        send_ticket(Channel.EMAIL, Rail.TRANSACTIONAL)
    _until(lambda: statuses() == {"sent": 1})
    submit_some(tenant, 1)  # and what comes after all those tickets is served as well
    _until(lambda: statuses() == {"sent": 2})
    _once(stack, 2)


@pytest.mark.parametrize("fault", ["hang", "drop_after_accept", "slow"])
def test_a_worker_killed_during_its_request_sends_once(stack: Stack, tenant: Tenant, fault: str) -> None:
    """Killed between request and answer: the provider took it (or not); the ledger finds out."""
    values = {"hang": {"accept": True}, "slow": {"extra_ms": 5000}}.get(fault, {})
    stack.sandbox.fault(fault, count=1, **values)
    submit_some(tenant, 5)
    stack.sandbox.wait(requests=1, timeout=30)
    worker = stack.worker("transactional")
    worker.kill()
    assert statuses() == {"sending": 5}
    worker.start()
    worker.wait_ready()
    _lapse_leases()
    _until(lambda: statuses() == {"sent": 5})
    assert Batch.objects.count() == 1
    _once(stack, 5)


def test_answers_that_are_lost_send_once(stack: Stack, tenant: Tenant) -> None:
    """The worker lives and hears nothing: the batches stay bound, and are repeated under their keys."""
    stack.sandbox.fault("drop_after_accept", count=2)
    submit_some(tenant, 5)
    _until(lambda: statuses() == {"sent": 5})
    assert stack.sandbox.stats()["replays"] >= 1
    _once(stack, 5)


def test_workers_killed_again_and_again_under_load_send_everything_once(stack: Stack, tenant: Tenant) -> None:
    others = [make_tenant() for _ in range(5)]
    for other in others:
        submit_many(other, [request(other, i, category="marketing") for i in range(600)])
    submit_some(tenant, 200)
    for i in range(4):
        stack.sandbox.wait(emails=400 * (i + 1), timeout=60)
        for rail in Rail:
            worker = stack.worker(rail)
            worker.kill()
            worker.start()
    _lapse_leases()
    _until(lambda: set(statuses()) == {"sent"} or _lapse_leases() is not None)
    _once(stack, 3200)


def test_two_workers_of_one_rail_share_the_work_without_doubles(stack: Stack, tenant: Tenant) -> None:
    stack.start_worker("marketing").wait_ready()
    submit_some(tenant, 3000, category="marketing")
    _until(lambda: statuses() == {"sent": 3000})
    _once(stack, 3000)
    assert set(Send.objects.values_list("attempts", flat=True)) == {1}
