"""However many claim from a lane one after another: who closes it waits for those that are under way, and for no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection, transaction
from psycopg.errors import LockNotAvailable

from core.db.session import BRIEF_WAIT, LOCK_WAIT
from core.models import Tenant
from messaging.dispatch.turn import LOCKED_SECONDS
from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel, Rail
from messaging.ledger.claim import Take, lock_lanes
from messaging.ledger.claim_gate import close_tenants
from messaging.ledger.lanes import hold
from messaging.ledger.record import Failure
from messaging.models import Blast, TenantLane
from messaging.services.control import cancel_blast, pause_blast, pause_tenant_lane
from tests.factories import make_blast, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)

CLAIMERS = 8


def _hold(key: LaneKey) -> None:
    with transaction.atomic():
        hold(Channel.EMAIL, Rail.MARKETING, key, Failure("refused"))


CLOSERS: dict[str, Callable[[Tenant, Blast], object]] = {
    "pause a blast": lambda tenant, blast: pause_blast(blast.pk),
    "cancel a blast": lambda tenant, blast: cancel_blast(blast.pk),
    "hold a blast": lambda tenant, blast: _hold(LaneKey(tenant.pk, blast.pk)),
    "pause a tenant's lane": lambda tenant, blast: pause_tenant_lane(tenant, Channel.EMAIL, Rail.MARKETING),
    "hold a tenant's lane": lambda tenant, blast: _hold(LaneKey(tenant.pk, None, 2)),
}


class Crowd:
    """Claimers in threads, one inside at any moment: each leaves only when another one has come in, or was kept out."""

    def __init__(self, take: Take) -> None:
        self.take = take
        self.inside = self.tries = 0
        self.over = False
        self.turn = threading.Condition()
        self.threads = [threading.Thread(target=self._claim) for _ in range(CLAIMERS)]

    def _claim(self) -> None:
        try:
            while not self.over:
                with transaction.atomic():
                    entered = bool(lock_lanes([self.take]))
                    with self.turn:
                        self.inside += entered
                        self.tries += 1
                        seen = self.tries
                        self.turn.notify_all()
                        if entered:
                            self.turn.wait_for(lambda: self.over or self.tries > seen, timeout=30)  # noqa: B023
        finally:
            connection.close()

    def stop(self) -> None:
        with self.turn:
            self.over = True
            self.turn.notify_all()
        for thread in self.threads:
            thread.join()


def _until_somebody_waits(closer: threading.Thread) -> None:
    with connection.cursor() as cursor:
        while closer.is_alive():
            cursor.execute(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            if cursor.fetchone():
                return


@pytest.mark.parametrize("how", CLOSERS)
def test_claims_in_overlapping_succession_keep_nobody_from_closing_a_lane(how: str) -> None:
    tenant = make_tenant()
    blast = make_blast(tenant, 1)
    crowd = Crowd(Take(tenant.pk, 2, None if "tenant" in how else blast.pk, 1))
    closed = threading.Event()

    def close() -> None:
        try:
            CLOSERS[how](tenant, blast)
            closed.set()
        finally:
            connection.close()

    closer = threading.Thread(target=close)
    for thread in crowd.threads:
        thread.start()
    try:
        with crowd.turn:
            assert crowd.turn.wait_for(lambda: crowd.inside > CLAIMERS, timeout=30)
        closer.start()
        _until_somebody_waits(closer)
        asked = crowd.inside
        with crowd.turn:
            crowd.turn.wait_for(lambda: closed.is_set() or crowd.inside > asked + 200, timeout=30)
        before = crowd.inside - asked
    finally:
        crowd.stop()
        closer.join()
    # Those that were counted a moment after they had come in.
    assert (closed.is_set(), before <= CLAIMERS) == (True, True), f"{before} claims went first"


@contextmanager
def _standing_still(take: Take) -> Iterator[None]:
    """A claim of the lane that does not go on until the block ends, as that of a worker that is frozen."""
    inside, over = threading.Event(), threading.Event()

    def claim() -> None:
        try:
            with transaction.atomic():
                assert lock_lanes([take])
                inside.set()
                over.wait(30)
        finally:
            connection.close()

    thread = threading.Thread(target=claim)
    thread.start()
    try:
        assert inside.wait(30)
        yield
    finally:
        over.set()
        thread.join()


def _lock_timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize("how", CLOSERS)
def test_whoever_waits_for_a_claim_that_stands_still_lets_others_in_meanwhile(how: str) -> None:
    tenant = make_tenant()
    blast = make_blast(tenant, 1)
    take = Take(tenant.pk, 2, None if "tenant" in how else blast.pk, 1)
    failed: list[type[Exception]] = []

    def close() -> None:
        try:
            CLOSERS[how](tenant, blast)
        except OperationalError as error:
            failed.append(type(error.__cause__))
        finally:
            connection.close()

    with _standing_still(take):
        closer = threading.Thread(target=close)
        closer.start()
        _until_somebody_waits(closer)
        # A claim that comes meanwhile is kept out, comes back as dispatch does, and is in before any lock was waited for as long
        # as a session may.
        looks = 0
        while True:
            looks += 1
            with transaction.atomic():
                if lock_lanes([take]):
                    break
            time.sleep(LOCKED_SECONDS)
        closer.join()
    assert looks * LOCKED_SECONDS < LOCK_WAIT / 2, f"{looks} looks"
    assert failed == [LockNotAvailable]


def test_a_claim_that_ends_late_is_paused_behind_all_the_same() -> None:
    """The first tries were in vain: who pauses is told nothing of that."""
    tenant = make_tenant()
    take = Take(tenant.pk, 2, None, 1)
    closer = threading.Thread(
        target=lambda: (pause_tenant_lane(tenant, Channel.EMAIL, Rail.MARKETING), connection.close())
    )
    with _standing_still(take):
        closer.start()
        _until_somebody_waits(closer)
        with transaction.atomic():
            while not lock_lanes([take]):  # it stands aside
                time.sleep(0.01)
    closer.join()
    assert TenantLane.objects.get(tenant=tenant, priority=2).paused


def test_what_is_locked_after_the_gate_is_waited_for_as_ever() -> None:
    before = _lock_timeout()
    with transaction.atomic():
        close_tenants([make_tenant().pk])
        assert _lock_timeout() == before
    assert _lock_timeout() == before
    assert BRIEF_WAIT < LOCK_WAIT
