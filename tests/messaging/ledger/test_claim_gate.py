"""However many claim from a lane one after another: who closes it waits for those that are under way, and for no other."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connection, transaction

from core.models import Tenant
from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel, Rail
from messaging.ledger.claim import Take, lock_lanes
from messaging.ledger.lanes import hold
from messaging.ledger.record import Failure
from messaging.models import Blast
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
