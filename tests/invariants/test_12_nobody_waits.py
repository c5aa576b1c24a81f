"""Invariant 12: no one host makes another tenant's login code wait. Seen with a worker process that is stopped exactly while its
transaction is open, as one stands whose host has vanished: its locks stay until the server notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from redis import Redis

from devtools.freezing import CLAIM, RECORD, Blocked, Within, blocked, stands_still
from devtools.stack import Stack, url_of
from messaging.models import Send
from tests.factories import make_tenant, statuses, submit_some
from tests.rig import ids, seed_buckets
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

#: What may be added to the time that the provider's limit explains while something has just died, and for a busy machine.
CODES_SECONDS = 2.0 + 1.5
#: Until the server has ended the transaction (5 s), and the clock has left a ticket.
FREE_SECONDS = 12.0


@pytest.fixture
def stack(transactional_db: None, redis: Redis, tmp_path: Path) -> Iterator[Stack]:
    seed_buckets()
    with Stack(
        data_dir=tmp_path,
        database_url=url_of(connection.settings_dict),
        redis_url=settings.REDIS_URL,
        sandbox_flags=["--rate", "0", "--latency-ms", "300"],
        web=False,
        workers={"transactional": 3, "marketing": 0},
    ) as stack:
        yield stack


_until = partial(until, told=statuses)


@contextmanager
def _frozen(stack: Stack, within: Within, work: Callable[[], object]) -> Iterator[Blocked]:
    """One of the workers, stopped within its transaction about `work`, which is given to them once the obstacle is there, or
    (to record an answer) before. It goes on when the block ends."""
    with psycopg.connect(stack.database_url) as other:
        if within is RECORD:
            work()
            _until(lambda: within.obstruct(other, "transactional"), 20)
        else:
            assert within.obstruct(other, "transactional")
            work()
        found: list[Blocked] = []
        _until(lambda: found or found.extend(filter(None, [blocked(other, within)])), 20)
        worker = next(one for one in stack.workers("transactional") if one.name == found[0].process)
        worker.pause()
        other.rollback()
        assert stands_still(other, found[0].backend)
    try:
        yield found[0]
    finally:
        worker.resume()


def _open(it: Blocked) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)", [it.backend])
        return bool(cursor.fetchone()[0])


def _sent(sends: list[UUID]) -> bool:
    return Send.objects.filter(pk__in=sends, status="sent").count() == len(sends)


def _codes_leave() -> None:
    other = make_tenant()
    for _ in range(3):
        codes = ids(submit_some(other, 1))
        _until(partial(_sent, codes), CODES_SECONDS)


def _all_once(stack: Stack, sends: int) -> None:
    stats = stack.sandbox.stats()
    assert (stats["send_ids"], stats["doubles"], statuses()) == (sends, 0, {"sent": sends})


def test_a_worker_that_stops_while_it_records_an_answer_keeps_no_code_waiting(stack: Stack) -> None:
    stuck: list[UUID] = []

    def work() -> None:
        stuck.extend(ids(submit_some(make_tenant(), 2)))
        # Its lease runs out while the worker is stopped: from then on all others may take the batch over.
        _until(_lapses_soon, 20)

    with _frozen(stack, RECORD, work) as it:
        _until(_lapsed, 10)
        _codes_leave()
        _until(lambda: not _open(it), FREE_SECONDS)
        _until(lambda: _sent(stuck), FREE_SECONDS)
    _all_once(stack, 5)


def _lapses_soon() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE core_processed_jobs SET lease_until = clock_timestamp() + interval '1.5 s'")
        return cursor.rowcount > 0


def _lapsed() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT bool_and(lease_until < clock_timestamp()) FROM core_processed_jobs WHERE done_at IS NULL"
        )
        return bool(cursor.fetchone()[0])


def test_a_worker_that_stops_while_it_claims_keeps_no_code_waiting_and_its_own_only_for_seconds(stack: Stack) -> None:
    stuck: list[UUID] = []
    with _frozen(stack, CLAIM, lambda: stuck.extend(ids(submit_some(make_tenant(), 2)))) as it:
        _codes_leave()
        assert statuses(pk__in=stuck) == {"queued": 2}
        _until(lambda: not _open(it), FREE_SECONDS)
        _until(lambda: _sent(stuck), FREE_SECONDS)
    _all_once(stack, 5)
