"""Redrive: same send, same content, a new attempt; once, however often it is asked for; ambiguous ones only by decision."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections, transaction
from redis import Redis

import messaging
from core.broker import queues
from core.models import DeadLetter, Tenant
from core.security.ids import new_id
from messaging.channels.sealing import seal_recipient
from messaging.domain.errors import InvalidInput, NotFound
from messaging.domain.lifecycle import SEND_STEPS, BatchState, SendStatus
from messaging.domain.rails import Channel, Rail, queue_name
from messaging.ledger import redrive as ledger
from messaging.ledger import sweeps
from messaging.ledger.counts import blast_facts
from messaging.ledger.folding import fold_deltas
from messaging.ledger.record import accept, finish_accepted_late
from messaging.models import Batch, Blast, BlastHint, Redrive, Send
from messaging.planner import plan_blast
from messaging.services.control import cancel_blast, pause_blast
from messaging.services.redrive import Verdict, redrive
from tests.factories import insert_raw, make_blast, make_tenant, status_of, statuses, submit_some
from tests.rig import Rig, seed_buckets

pytestmark = pytest.mark.django_db(transaction=True)
QUEUE = queue_name(Channel.EMAIL, Rail.TRANSACTIONAL)


@pytest.fixture(autouse=True)
def _buckets(redis: Redis, transactional_db: None) -> None:
    seed_buckets()


def _set(status: str, **where: Any) -> None:
    """As the ledger leaves them."""
    Send.objects.filter(**where).update(
        status=status, batch_id=new_id(), attempts=10, error_code="attempts_exhausted", error_detail="x"
    )
    if status == "failed":
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO core_dead_letters (channel, send_id, tenant_id, batch_id, reason, detail, redriven, created_at)"
                " SELECT channel, id, tenant_id, batch_id, error_code, '', 0, now() FROM messaging_sends"
                " WHERE status = 'failed' ON CONFLICT DO NOTHING"
            )


def _failed(tenant: Tenant, count: int) -> list[UUID]:
    ids = [s.id for s in submit_some(tenant, count)]
    _set("failed", pk__in=ids)
    return ids


def _failed_blast(count: int, tenant: Tenant | None = None) -> Blast:
    blast = make_blast(tenant or make_tenant(), count)
    _set("failed", blast=blast)
    sweeps.refresh_hints()
    assert sweeps.finish_blasts() == 1
    return blast


# ---------------------------------------------------------------------------------------------------- through the provider


def test_a_failed_send_is_sent_once_by_a_new_batch_under_a_new_key(rig: Rig) -> None:
    tenant = make_tenant()
    bad = submit_some(tenant, 1, to="somebody@example.com")[0].id
    submit_some(tenant, 2)
    rig.turn()
    assert status_of(bad) == "failed"
    first = rig.batch()
    rig.sandbox.reset()
    # The provider's mind has changed: what it refused it takes now.
    Send.objects.filter(pk=bad).update(sealed=seal_recipient(bad, "somebody@recipients.org", {"code": "1"}))
    assert redrive(send_ids=[bad], by="ada").moved == 1
    assert redrive(send_ids=[bad], by="ada").refused == {Verdict.WAITING: 1}
    rig.drain()
    assert status_of(bad) == "sent"
    assert rig.accepted_ids() == [str(bad)]
    second = Batch.objects.exclude(pk=first.pk).get()
    assert second.idempotency_key != first.idempotency_key
    letter = DeadLetter.objects.get()
    assert (letter.send_id, letter.redriven) == (bad, 1)
    kept = Redrive.objects.get()
    assert (kept.send_id, kept.was, kept.batch_id, kept.by) == (bad, "failed", first.pk, "ada")


def test_an_ambiguous_send_is_redriven_only_by_somebody_who_accepts_that_it_arrives_twice(rig: Rig) -> None:
    send = submit_some(make_tenant(), 1)[0].id
    for _ in range(2):
        rig.sandbox.fault("too_few_ids", count=1, missing=1)
        rig.turn()
        rig.lapse_leases()
    assert status_of(send) == "ambiguous"
    batch = rig.batch()
    for refused in (redrive(send_ids=[send], by="ada"), redrive(send_ids=[send], accept_duplicates_by="  ")):
        assert (refused.moved, refused.refused) == (0, {Verdict.NEEDS_ACCEPTANCE: 1})
    assert (status_of(send), Redrive.objects.count()) == ("ambiguous", 0)
    assert redrive(send_ids=[send], accept_duplicates_by="ada").moved == 1
    rig.drain()
    assert status_of(send) == "sent"
    assert rig.sandbox.stats()["doubles"] == 1  # what ada accepted
    kept = Redrive.objects.get()
    assert (kept.was, kept.batch_id, kept.by, kept.reason) == ("ambiguous", batch.pk, "ada", "miscounted_answer")
    assert not DeadLetter.objects.exists()


def test_a_late_acceptance_of_the_old_batch_does_not_touch_a_redriven_send(rig: Rig) -> None:
    send = submit_some(make_tenant(), 1)[0].id
    for _ in range(2):
        rig.sandbox.fault("too_few_ids", count=1, missing=1)
        rig.turn()
        rig.lapse_leases()
    old = rig.batch().pk
    redrive(send_ids=[send], accept_duplicates_by="ada")
    with transaction.atomic():
        assert finish_accepted_late(old, BatchState.ACCEPTED)
        assert accept(old, {send: "late"}) == {}
    assert status_of(send) == "queued"


# ---------------------------------------------------------------------------------------------------- the ledger


def test_a_redriven_send_begins_anew_and_a_ticket_follows_on_commit(redis: Redis) -> None:
    pk = _failed(make_tenant(), 1)[0]
    redis.flushdb()
    with transaction.atomic():
        assert messaging.redrive(send_ids=[pk]).moved == 1
        assert queues.depth(QUEUE) == 0
    assert queues.depth(QUEUE) == 1
    send = Send.objects.get()
    assert (send.status, send.attempts, send.batch_id, send.error_code, send.error_detail) == (
        "queued",
        0,
        None,
        None,
        None,
    )


def test_the_caller_s_transaction_takes_it_back(redis: Redis) -> None:
    pk = _failed(make_tenant(), 1)[0]
    redis.flushdb()
    with transaction.atomic():
        redrive(send_ids=[pk])
        transaction.set_rollback(True)
    assert (status_of(pk), DeadLetter.objects.get().redriven, queues.depth(QUEUE)) == ("failed", 0, 0)


def test_the_table_of_steps_allows_it() -> None:
    assert SendStatus.QUEUED in SEND_STEPS[SendStatus.FAILED] & SEND_STEPS[SendStatus.AMBIGUOUS]


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("scheduled", Verdict.WAITING),
        ("queued", Verdict.WAITING),
        ("sending", Verdict.WAITING),
        ("sent", Verdict.SENT),
        ("expired", Verdict.EXPIRED),
        ("cancelled", Verdict.CANCELLED),
        ("ambiguous", Verdict.NEEDS_ACCEPTANCE),
    ],
)
def test_what_has_not_failed_is_refused_with_a_word(status: str, verdict: Verdict) -> None:
    pk = submit_some(make_tenant(), 1)[0].id
    Send.objects.update(status=status, batch_id=pk, accepted_at="2030-01-01T00:00Z")
    done = redrive(send_ids=[pk], by="ada")
    assert (done.moved, done.refused, done.examples) == (0, {verdict: 1}, {verdict: pk})
    assert (status_of(pk), Redrive.objects.count()) == (status, 0)


def test_a_failed_send_that_has_run_out_since_is_refused() -> None:
    pk = _failed(make_tenant(), 1)[0]
    Send.objects.update(expires_at="2020-01-01T00:00Z")
    assert redrive(send_ids=[pk]).refused == {Verdict.EXPIRED: 1}
    assert status_of(pk) == "failed"


def test_to_a_tenant_others_sends_are_unknown() -> None:
    pk = _failed(make_tenant(), 1)[0]
    done = redrive(send_ids=[pk, new_id()], tenant=make_tenant())
    assert (done.moved, done.refused, status_of(pk)) == (0, {Verdict.UNKNOWN: 2}, "failed")


def test_asked_for_twice_in_one_call_it_is_one() -> None:
    pk = _failed(make_tenant(), 1)[0]
    assert redrive(send_ids=[pk, pk]).moved == 1


def test_eight_clicks_at_once_redrive_each_send_once() -> None:
    ids = _failed(make_tenant(), 60)
    moved: list[int] = []
    start = threading.Barrier(8)

    def click(turned: bool) -> None:
        start.wait()
        try:
            moved.append(redrive(send_ids=ids[::-1] if turned else ids).moved)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=click, args=(i % 2 == 0,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(moved) == 60
    assert set(DeadLetter.objects.values_list("redriven", flat=True)) == {1}
    assert Redrive.objects.count() == 60


# ---------------------------------------------------------------------------------------------------- blasts


def test_a_finished_blast_is_reopened_and_finished_again(rig: Rig) -> None:
    tenant = make_tenant()
    plan = plan_blast(
        tenant,
        recipients=[{"to": f"u{i}@recipients.org"} for i in range(5)],
        from_=f"a@{tenant.slug}.org",
        subject="s",
        text="t",
    )
    _set("failed", blast_id=plan.blast_id)
    sweeps.refresh_hints()
    assert sweeps.finish_blasts() == 1
    assert redrive(blast=plan.blast_id, by="ada").moved == 5
    blast = Blast.objects.get()
    assert (blast.state, blast.finished_at) == ("running", None)
    assert BlastHint.objects.get(pk=blast.pk).has_due
    assert sweeps.finish_blasts() == 0
    rig.drain(Rail.MARKETING)
    assert statuses() == {"sent": 5}
    sweeps.refresh_hints()
    assert sweeps.finish_blasts() == 1
    assert len(rig.accepted_ids()) == len(set(rig.accepted_ids())) == 5


def test_the_counts_of_a_redriven_blast_are_the_facts() -> None:
    blast = _failed_blast(7)
    fold_deltas()
    redrive(blast=blast.pk)
    for _ in range(2):
        facts = blast_facts(blast.tenant_id, blast.pk)
        assert facts is not None
        assert {s: n for s, n in facts.counts.items() if n} == {SendStatus.QUEUED: 7}
        fold_deltas()


def test_the_hint_covers_redriven_sends_that_lie_before_it() -> None:
    blast = make_blast(make_tenant(), 10)
    first = list(Send.objects.order_by("id").values_list("id", flat=True)[:3])
    _set("failed", pk__in=first)
    sweeps.refresh_hints()
    redrive(send_ids=first[1:])
    blast.refresh_from_db()
    assert BlastHint.objects.get(pk=blast.pk).low == first[1]


def test_a_cancelled_blast_s_sends_are_refused_a_paused_one_s_wait() -> None:
    cancelled, paused = _failed_blast(2), make_blast(make_tenant(), 2)
    Blast.objects.filter(pk=cancelled.pk).update(state="running", finished_at=None)
    cancel_blast(cancelled.pk)
    pause_blast(paused.pk)
    _set("failed", blast=paused)
    assert redrive(blast=cancelled.pk).refused == {Verdict.CANCELLED: 2}
    assert redrive(blast=paused.pk).moved == 2
    assert Blast.objects.get(pk=paused.pk).state == "paused"


def test_a_redrive_between_the_clock_s_look_and_its_lock_keeps_the_blast_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock's first statement has found the blast to be over; before it has the lock, a redrive commits. Here the lock
    waits, since two statements cannot be stopped between snapshot and lock otherwise."""
    blast = make_blast(make_tenant(), 3)
    _set("failed", blast=blast)
    sweeps.refresh_hints()
    monkeypatch.setattr(sweeps, "_LOCK_RUN_OUT", sweeps._LOCK_RUN_OUT.replace("SKIP LOCKED", ""))
    finished: list[int] = []

    def clock() -> None:
        try:
            finished.append(sweeps.finish_blasts())
        finally:
            connections.close_all()

    thread = threading.Thread(target=clock)
    with transaction.atomic():
        redrive(blast=blast.pk)
        thread.start()
        _until_it_waits()
    thread.join()
    blast.refresh_from_db()
    assert (finished, blast.state, blast.finished_at) == ([0], "running", None)


def _until_it_waits() -> None:
    with connection.cursor() as cursor:
        for _ in range(2_000):
            cursor.execute("SELECT pg_sleep(0.005), count(*) FROM pg_locks WHERE NOT granted")
            if cursor.fetchone()[1]:
                return
    raise AssertionError("nobody waits")


def test_a_blast_that_is_not_there_or_is_another_tenant_s_is_not_found() -> None:
    blast = _failed_blast(1)
    for arguments in ({"blast": new_id()}, {"blast": blast.pk, "tenant": make_tenant()}):
        with pytest.raises(NotFound):
            redrive(**arguments)


# ---------------------------------------------------------------------------------------------------- which, and how many


def test_a_reason_takes_the_failed_ones_of_that_reason_and_says_which_are_ambiguous() -> None:
    tenant, other = make_tenant(), make_tenant()
    ours, theirs = _failed(tenant, 3), _failed(other, 2)
    _failed_for_another = _failed(tenant, 1)
    DeadLetter.objects.filter(send_id__in=_failed_for_another).update(reason="not_a_recipient")
    unclear = submit_some(tenant, 1)[0].id
    batch = Batch.objects.create(
        channel="email",
        rail="transactional",
        state="ambiguous",
        send_ids=[unclear],
        digest=b"",
        rendered_at="2030-01-01T00:00Z",
    )
    Send.objects.filter(pk=unclear).update(status="ambiguous", batch_id=batch.pk, error_code="attempts_exhausted")
    done = redrive(reason="attempts_exhausted", tenant=tenant)
    assert (done.moved, done.refused) == (3, {Verdict.NEEDS_ACCEPTANCE: 1})
    assert {status_of(pk) for pk in ours} == {"queued"}
    assert {status_of(pk) for pk in theirs} == {"failed"}
    assert redrive(reason="attempts_exhausted", accept_duplicates_by="ada").moved == 3
    assert statuses() == {"queued": 6, "failed": 1}


def test_many_are_redriven_in_bounded_transactions_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = make_tenant()
    insert_raw(tenant, 12_000, category="transactional")
    _set("failed")
    sizes: list[int] = []
    real = ledger.move
    monkeypatch.setattr(ledger, "move", lambda ids, **rest: (sizes.append(len(ids)), real(ids, **rest))[1])
    steps_seen: list[int] = []
    done = redrive(reason="attempts_exhausted", progress=lambda d: steps_seen.append(d.moved))
    assert (done.moved, sizes, steps_seen) == (12_000, [5_000, 5_000, 2_000], [5_000, 10_000, 12_000])
    assert statuses() == {"queued": 12_000}


def test_one_that_fails_again_meanwhile_is_not_redriven_a_second_time_by_the_same_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a redrive of a cause that is still there would not end."""
    ids = _failed(make_tenant(), 3)
    real = ledger.move

    def move(wanted: Any, **rest: Any) -> Any:
        moved = real(wanted, **rest)
        _set("failed", pk__in=ids)
        return moved

    monkeypatch.setattr(ledger, "move", move)
    assert redrive(reason="attempts_exhausted").moved == 3


def test_a_dry_run_tells_and_changes_nothing(redis: Redis) -> None:
    blast = _failed_blast(4)
    assert redrive(blast=blast.pk, dry_run=True).moved == 4
    blast.refresh_from_db()
    assert (statuses(), blast.state, queues.depth(QUEUE)) == ({"failed": 4}, "finished", 0)


@pytest.mark.parametrize(
    "arguments", [{}, {"send_ids": [], "reason": "x"}, {"send_ids": [], "by": "x" * 151}], ids=["none", "two", "name"]
)
def test_what_to_redrive_is_said_in_one_way(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        redrive(**arguments)
