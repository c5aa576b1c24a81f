"""Counts of blasts by status: always the facts, whatever happens to the sends, folded or not, also while it happens."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection, transaction
from django.db.models import Count
from django.utils import timezone

from core.security.ids import new_id
from devtools.stack import url_of
from messaging.clock import run_once
from messaging.domain.lifecycle import SendStatus
from messaging.domain.rails import Channel, Rail
from messaging.ledger import folding, sweeps
from messaging.ledger.claim import Take, put_back, take
from messaging.ledger.counts import READ, blast_facts, newest_blasts
from messaging.ledger.folding import fold_deltas, prune_paces
from messaging.ledger.record import Failure, accept, fail, give_back, leave_ambiguous
from messaging.models import Batch, Blast, BlastCount, BlastDelta, BlastFold, BlastPace, BlastUpload, Send
from messaging.services.control import cancel_blast
from messaging.services.submit import submit
from tests.factories import insert_raw, make_blast, make_tenant, request, submit_some
from tests.messaging.ledger.plans import generic_plan
from tests.messaging.tenant_rig import ensure_bucket

pytestmark = pytest.mark.django_db(transaction=True)
WHY = Failure("test")


def facts(blast: Blast) -> dict[str, int]:
    rows = Send.objects.filter(blast=blast).values_list("status").annotate(n=Count("*"))
    return dict.fromkeys(SendStatus, 0) | {SendStatus(status): n for status, n in rows}


def told(blast: Blast) -> dict[SendStatus, int]:
    found = blast_facts(blast.tenant_id, blast.pk)
    assert found is not None
    return found.counts


class Life:
    """Random things that happen to the sends of some blasts, each through the statement that does it in earnest."""

    def __init__(self, seed: int) -> None:
        ensure_bucket()
        self.random = random.Random(seed)
        self.tenant = make_tenant()
        self.blasts = [make_blast(self.tenant, n) for n in (40, 25, 1)]
        self.bound: dict[UUID, list[UUID]] = {}
        submit_some(self.tenant, 20, category="marketing")

    def step(self) -> None:
        deeds: list[Callable[[], object]] = [
            self.claim, self.claim, self.claim, self.accepted, self.accepted, self.given_back, self.failed, self.ambiguous,
            self.redriven, self.added, self.expires, self.cancelled, self.rolled_back, sweeps.wake, sweeps.expire,
            sweeps.clear_cancelled, fold_deltas, self.fold_some,
        ]  # fmt: skip
        self.random.choice(deeds)()

    def claim(self) -> None:
        batch = new_id()
        takes = [Take(self.tenant.pk, 2, b.pk, self.random.randint(1, 6)) for b in self.blasts]
        takes.append(Take(self.tenant.pk, 2, None, 3))
        with transaction.atomic():
            sends, _ = take(Channel.EMAIL, Rail.MARKETING, 2, batch, takes)
            back = self.random.sample(sends, len(sends) // 3)
            put_back(batch, back)
            kept = [s.id for s in sends if s not in back]
        if kept:
            now = timezone.now()
            Batch.objects.create(
                id=batch, channel="email", rail="marketing", send_ids=kept, rendered_at=now, digest=b""
            )
            self.bound[batch] = kept

    def _batch(self) -> tuple[UUID, list[UUID]]:
        batch = self.random.choice(list(self.bound))
        ids = self.bound[batch]
        return batch, self.random.sample(ids, self.random.randint(1, len(ids)))

    def accepted(self) -> None:
        if self.bound:
            batch, ids = self._batch()
            accept(batch, {pk: str(pk) for pk in ids})

    def given_back(self) -> None:
        if self.bound:
            batch, ids = self._batch()
            delays = {pk: self.random.choice([None, 0.0, 60.0]) for pk in ids}
            give_back(batch, delays, counted=True, why=WHY)

    def failed(self) -> None:
        if self.bound:
            batch, ids = self._batch()
            fail(batch, dict.fromkeys(ids, WHY))

    def ambiguous(self) -> None:
        if self.bound:
            leave_ambiguous(self._batch()[0], WHY)

    def redriven(self) -> None:
        ids = Send.objects.filter(status__in=["failed", "ambiguous"]).values_list("id", flat=True)[:3]
        Send.objects.filter(pk__in=list(ids)).update(status="queued")

    def added(self) -> None:
        blast = self.random.choice(self.blasts)
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO messaging_sends (id, tenant_id, blast_id, content_id, channel, category, rail, priority, status,"
                " fingerprint, sealed, attempts) SELECT gen_random_uuid(), tenant_id, blast_id, content_id, channel, category,"
                " rail, priority, CASE WHEN random() < 0.5 THEN 'queued' ELSE 'scheduled' END,"
                " CASE WHEN random() < 0.5 THEN fingerprint ELSE uuid_send(gen_random_uuid()) END, sealed, 0"
                " FROM messaging_sends WHERE blast_id = %s LIMIT 7"
                " ON CONFLICT (blast_id, fingerprint) WHERE blast_id IS NOT NULL DO NOTHING",
                [blast.pk],
            )
        Blast.objects.filter(pk=blast.pk).update(planned=Send.objects.filter(blast=blast).count())

    def expires(self) -> None:
        ids = Send.objects.filter(status__in=["queued", "scheduled"]).values_list("id", flat=True)[:2]
        Send.objects.filter(pk__in=list(ids)).update(expires_at=timezone.now() - timedelta(seconds=1))

    def cancelled(self) -> None:
        if self.random.random() < 0.1:
            cancel_blast(self.blasts[1].pk)

    def rolled_back(self) -> None:
        with transaction.atomic():
            self.claim()
            with transaction.atomic():
                self.accepted()
                transaction.set_rollback(True)
            transaction.set_rollback(self.random.random() < 0.5)
        self.bound = {b.pk: b.send_ids for b in Batch.objects.all()}

    def fold_some(self) -> None:
        limit, rounds = folding.LIMIT, folding.ROUNDS
        folding.LIMIT, folding.ROUNDS = self.random.randint(1, 5), 1
        try:
            fold_deltas()
        finally:
            folding.LIMIT, folding.ROUNDS = limit, rounds


@pytest.mark.parametrize("seed", range(4))
def test_at_every_point_the_counts_are_the_facts(seed: int) -> None:
    life = Life(seed)
    seen: set[str] = set()
    for _ in range(120):
        life.step()
        for blast in life.blasts:
            assert told(blast) == facts(blast)
            seen |= {status for status, n in facts(blast).items() if n}
    fold_deltas()
    assert not BlastDelta.objects.exists()
    assert len(seen) >= 6  # it was an eventful life
    for blast in life.blasts:
        assert told(blast) == facts(blast)
        assert sum(told(blast).values()) == Blast.objects.get(pk=blast.pk).planned


def test_single_sends_write_no_delta() -> None:
    tenant = make_tenant()
    ensure_bucket()
    submit(tenant, **request(tenant))
    Send.objects.update(status="cancelled")
    assert not BlastDelta.objects.exists()


def test_a_transaction_has_one_row_for_each_status_it_changed() -> None:
    blast = make_blast(make_tenant(), 10)
    fold_deltas()
    with transaction.atomic():
        for send in Send.objects.all()[:4]:
            Send.objects.filter(pk=send.pk).update(status="expired")
        Send.objects.update(expires_at=timezone.now())  # no status changes
    rows = set(BlastDelta.objects.values_list("blast_id", "status", "delta"))
    assert rows == {(blast.pk, "queued", -4), (blast.pk, "expired", 4)}


def test_two_clocks_fold_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "LIMIT", 7)
    monkeypatch.setattr(folding, "ROUNDS", 1000)
    tenant = make_tenant()
    blasts = [make_blast(tenant, 3) for _ in range(30)]
    ids = list(Send.objects.values_list("id", flat=True))
    errors: list[Exception] = []
    stop = threading.Event()

    def work(ids: list[UUID]) -> None:
        for pk in ids:
            Send.objects.filter(pk=pk).update(status="expired")
            Send.objects.filter(pk=pk).update(status="queued")
            Send.objects.filter(pk=pk).update(status="cancelled")

    def clock() -> None:
        while not stop.is_set():
            fold_deltas()

    def look() -> None:
        """In one snapshot, the counts are the facts, whatever goes on."""
        while not stop.is_set():
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                for blast in random.sample(blasts, 3):
                    assert told(blast) == facts(blast)
            for found in newest_blasts(tenant.pk, 30):
                assert sum(found.counts.values()) == found.planned == 3

    def guarded(target: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                target()
            except Exception as error:  # noqa: BLE001  (shown by the test's own thread)
                errors.append(error)
            finally:
                connection.close()

        return run

    workers = [threading.Thread(target=guarded(lambda part=ids[i::3]: work(part))) for i in range(3)]  # type: ignore[misc]
    others = [threading.Thread(target=guarded(target)) for target in (clock, clock, look)]
    for thread in workers + others:
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    for thread in others:
        thread.join()
    assert errors == []
    fold_deltas()
    assert not BlastDelta.objects.exists()
    assert set(BlastCount.objects.exclude(n=0).values_list("status", "n")) == {("cancelled", 3)}
    assert all(told(blast) == facts(blast) for blast in blasts)


def test_a_transaction_that_is_older_than_the_fold_is_counted_when_it_ends() -> None:
    """Its rows carry a number below those that were folded meanwhile: the floor stays below it."""
    blast = make_blast(make_tenant(), 4)
    first, *_, last = Send.objects.order_by("id")
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": psycopg.Cursor}) as other:
        other.execute("UPDATE messaging_sends SET status = 'expired' WHERE id = %s", [first.pk])
        Send.objects.filter(pk=last.pk).update(status="cancelled")
        assert fold_deltas() == 3
        assert told(blast)[SendStatus.EXPIRED] == 0
        assert told(blast)[SendStatus.CANCELLED] == 1
        other.commit()
    assert (told(blast)[SendStatus.EXPIRED], told(blast)[SendStatus.QUEUED]) == (1, 2)
    assert fold_deltas() == 2
    assert told(blast) == facts(blast)


@pytest.mark.parametrize("floor", [None, 2**60])
def test_a_floor_that_is_missing_or_of_another_server(floor: int | None) -> None:
    """As after a restore into a server whose transactions have smaller numbers."""
    blast = make_blast(make_tenant(), 4)
    BlastFold.objects.all().delete()
    if floor:
        BlastFold.objects.create(id=1, floor=floor)
    assert told(blast)[SendStatus.QUEUED] == 4
    assert fold_deltas() == 1
    assert BlastFold.objects.get().floor < 2**60
    assert told(blast)[SendStatus.QUEUED] == 4


def test_the_rate_is_of_the_last_minute() -> None:
    blast = make_blast(make_tenant(), 600)
    now = timezone.now()
    Blast.objects.update(launched_at=now - timedelta(minutes=10))
    ids = list(Send.objects.values_list("id", flat=True))
    for part, age in ((ids[:300], 120), (ids[300:420], 40)):
        Send.objects.filter(pk__in=part).update(status="sent", accepted_at=now)
        BlastDelta.objects.filter(status="sent").update(at=now - timedelta(seconds=age))
        fold_deltas()
    Send.objects.filter(pk__in=ids[420:450]).update(status="sent", accepted_at=now)  # not folded yet
    found = blast_facts(blast.tenant_id, blast.pk)
    assert found is not None
    assert found.counts[SendStatus.SENT] == 450
    assert 150 / 60 <= found.rate <= 150 / 55 + 0.01
    assert (prune_paces(), BlastPace.objects.count()) == (1, 1)


def test_the_rate_of_a_blast_that_was_just_launched() -> None:
    blast = make_blast(make_tenant(), 100)
    now = timezone.now()
    Blast.objects.update(launched_at=now - timedelta(seconds=10))
    Send.objects.update(status="sent", accepted_at=now)
    found = blast_facts(blast.tenant_id, blast.pk)
    assert found is not None
    assert 8 < found.rate <= 10


def test_the_clock_folds(redis: object) -> None:
    ensure_bucket()
    make_blast(make_tenant(), 2)
    assert run_once(1).moved["fold_deltas"] == 1
    assert run_once(0).moved["prune_paces"] == 0


def test_others_are_not_seen() -> None:
    blast = make_blast(make_tenant(), 1)
    other = make_tenant()
    assert blast_facts(other.pk, blast.pk) is None
    assert newest_blasts(other.pk, 10) == []
    assert blast_facts(blast.tenant_id, new_id()) is None


def test_newest_first() -> None:
    tenant = make_tenant()
    made = [make_blast(tenant, n, category="product").pk for n in (1, 2, 3, 4, 5)]
    assert [f.id for f in newest_blasts(tenant.pk, 2)] == [made[4], made[3]]
    assert [f.id for f in newest_blasts(tenant.pk, 9, before=made[3])] == [made[2], made[1], made[0]]
    assert [f.planned for f in newest_blasts(tenant.pk, 9)] == [5, 4, 3, 2, 1]
    assert newest_blasts(tenant.pk, 9, before=UUID(int=0)) == []


@pytest.mark.slow
def test_reading_costs_the_same_in_a_large_blast_and_under_an_open_snapshot() -> None:
    """With 300,000 sends and 4,000 deltas that an open snapshot keeps from being vacuumed."""
    tenant = make_tenant()
    small, large = make_blast(tenant, 10), make_blast(tenant, 300_000)
    fold_deltas()
    assert _milliseconds(small) < 20
    assert _milliseconds(large) < 20
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": psycopg.Cursor}) as other:
        other.execute("SET idle_in_transaction_session_timeout = 0")  # as a dump has it
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        other.execute("SELECT 1")
        ids = list(Send.objects.filter(blast=large).values_list("id", flat=True)[:2_000])
        for pk in ids:
            Send.objects.filter(pk=pk).update(status="cancelled")
            if random.random() < 0.02:
                fold_deltas()
        fold_deltas()
        assert _buffers(large) < 60
    assert told(large)[SendStatus.CANCELLED] == 2_000


def _milliseconds(blast: Blast) -> float:
    told(blast)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        told(blast)
        times.append(time.perf_counter() - start)
    return min(times) * 1000


def _buffers(blast: Blast) -> int:
    parameters = {"tenant": blast.tenant_id, "first": blast.pk, "last": blast.pk, "limit": 1, "window": 60, "step": 5}
    return generic_plan(READ, parameters).buffers


def _migration(name: str) -> Any:
    return import_module(f"messaging.migrations.{name}")


def test_what_was_there_before_the_trigger_is_counted_by_the_migrations() -> None:
    blast = make_blast(make_tenant(), 5, rows_read=7, rejected=2)
    Send.objects.filter(pk=Send.objects.values("pk")[:1]).update(status="expired")
    BlastDelta.objects.all().delete()
    assert sum(told(blast).values()) == 0
    with connection.cursor() as cursor:
        cursor.execute(_migration("0003_blast_counts").COUNT_UPLOADS)
        for _ in range(2):  # as after an interruption
            cursor.execute(_migration("0004_sends_listing").COUNT_WHAT_THERE_IS)
    assert told(blast) == facts(blast)
    upload = BlastUpload.objects.get()
    assert (upload.blast_id, upload.number, upload.rows_read, upload.planned, upload.rejected) == (blast.pk, 1, 7, 5, 2)


def test_the_migration_counts_each_change_once_while_others_write() -> None:
    """It waits for nobody, and nobody for it: what it has seen is folded no more, what it has not is folded later."""
    blast = make_blast(make_tenant(), 5)
    with psycopg.connect(url_of(connection.settings_dict)) as other:
        other.execute("UPDATE messaging_sends SET status = 'expired'")
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = 1")
            cursor.execute(_migration("0004_sends_listing").COUNT_WHAT_THERE_IS)
            cursor.execute("RESET lock_timeout")
        assert told(blast) == {**told(blast), "queued": 5, "expired": 0}
    assert told(blast) == facts(blast)
    fold_deltas()
    assert told(blast) == facts(blast)


def test_raw_rows_of_single_sends_are_not_counted() -> None:
    insert_raw(make_tenant(), 3)
    assert not BlastDelta.objects.exists()
