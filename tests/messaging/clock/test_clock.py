"""The clock's steps: what time alone makes true, in bounded pieces, with two clocks at once, with parts missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.utils import timezone
from redis import Redis

from core import queues
from core.models import ProcessedJob
from messaging.clock import run_once, steps
from messaging.clock.tickets import re_ticket
from messaging.lanes import cancel_blast, pause_blast
from messaging.models import BlastHint, BlastMark, IdempotencyKey, Send
from messaging.rails import Channel, Rail, queue_name
from messaging.submission import submit
from tests.factories import insert_raw, make_blast, make_tenant, request, statuses, submit_some
from tests.rig import seed_buckets

pytestmark = pytest.mark.django_db(transaction=True)

EMAIL_OTP = queue_name(Channel.EMAIL, Rail.TRANSACTIONAL)
EMAIL_BULK = queue_name(Channel.EMAIL, Rail.MARKETING)


@pytest.fixture(autouse=True)
def _ready(redis: Redis) -> None:
    seed_buckets()
    queues.breaker.reset()


def _soon() -> Any:
    return timezone.now() + timedelta(hours=1)


def _past() -> Any:
    return timezone.now() - timedelta(seconds=1)


def test_a_scheduled_send_becomes_due_when_its_time_has_come() -> None:
    submit_some(make_tenant(), 2, not_before=_soon())
    assert (steps.wake(), statuses()) == (0, {"scheduled": 2})
    Send.objects.update(not_before=_past())
    assert (steps.wake(), statuses()) == (2, {"queued": 2})


def test_a_scheduled_send_that_has_run_out_expires_instead() -> None:
    submit_some(make_tenant(), 1, not_before=_soon(), expires_at=_soon() + timedelta(hours=1))
    Send.objects.update(not_before=_past(), expires_at=_past())
    steps.wake()
    assert statuses() == {"expired": 1}


def test_waiting_sends_expire() -> None:
    tenant = make_tenant()
    submit_some(tenant, 2, expires_at=_soon())
    submit_some(tenant, 2)
    Send.objects.filter(expires_at__isnull=False).update(expires_at=_past())
    assert (steps.expire(), statuses()) == (2, {"expired": 2, "queued": 2})


@pytest.mark.parametrize("step", [steps.wake, steps.expire])
def test_a_step_is_bounded_and_the_next_beat_goes_on(step: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LIMIT", 3)
    submit_some(make_tenant(), 5, not_before=_soon(), expires_at=_soon() + timedelta(hours=1))
    Send.objects.update(not_before=_past(), expires_at=_past())
    assert [step(), step(), step()] == [3, 2, 0]


def test_a_cancelled_blast_is_cleared_and_closed_and_its_sends_in_flight_are_left_alone() -> None:
    blast = make_blast(make_tenant(), 5)
    bound = Send.objects.filter(blast=blast).first()
    assert bound is not None
    Send.objects.filter(pk=bound.pk).update(status="sending", batch_id=bound.pk)
    Send.objects.filter(pk=Send.objects.filter(status="queued").first().pk).update(
        status="scheduled", not_before=_soon()
    )
    cancel_blast(blast.pk)
    assert (steps.clear_cancelled(), statuses()) == (4, {"cancelled": 4, "sending": 1})


def test_hints_follow_the_facts_both_ways() -> None:
    blast = make_blast(make_tenant(), 3)
    first = Send.objects.order_by("id").first()
    assert first is not None
    hint = BlastHint.objects.get(pk=blast.pk)
    BlastHint.objects.update(has_due=False, low=None)
    assert steps.refresh_hints() == 1
    hint.refresh_from_db()
    assert (hint.has_due, hint.low) == (True, first.pk)
    # A send that went back to waiting below `low` is found again.
    Send.objects.filter(pk=first.pk).update(status="sending", batch_id=first.pk)
    assert sum(steps.refresh_hints() for _ in range(steps.TURNS)) == 1
    hint.refresh_from_db()
    assert hint.low > first.pk
    Send.objects.filter(pk=first.pk).update(status="queued")
    steps.refresh_hints()
    assert BlastMark.objects.count() == 0
    hint.refresh_from_db()
    assert hint.low == first.pk
    Send.objects.update(status="sent", accepted_at=timezone.now())
    steps.refresh_hints()
    hint.refresh_from_db()
    assert hint.has_due is False
    assert steps.refresh_hints() == 0


@pytest.mark.parametrize("status", ["queued", "scheduled", "sending"])
def test_a_blast_with_an_open_send_is_not_finished(status: str) -> None:
    """Invariant 9."""
    blast = make_blast(make_tenant(), 2)
    Send.objects.update(status="sent", accepted_at=timezone.now())
    one = Send.objects.first()
    assert one is not None
    Send.objects.filter(pk=one.pk).update(status=status, accepted_at=None, batch_id=one.pk)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO messaging_batches (id, provider, channel, rail, state, send_ids, digest, idempotency_key,"
            " rendered_at, attempts) VALUES (%s, 'resend', 'email', 'marketing', 'claimed', ARRAY[%s]::uuid[], '', 'k',"
            " now(), 1)",
            [one.pk, one.pk],
        )
    assert steps.finish_blasts() == 0
    blast.refresh_from_db()
    assert (blast.state, blast.finished_at) == ("running", None)


def test_a_blast_without_an_open_send_is_finished_also_with_ambiguous_ones() -> None:
    blast = make_blast(make_tenant(), 3)
    Send.objects.update(status="sent", accepted_at=timezone.now())
    one = Send.objects.first()
    assert one is not None
    Send.objects.filter(pk=one.pk).update(status="ambiguous", batch_id=one.pk)
    steps.refresh_hints()
    assert steps.finish_blasts() == 1
    blast.refresh_from_db()
    assert blast.state == "finished"
    assert blast.finished_at is not None


def test_a_planning_or_paused_blast_is_not_finished() -> None:
    make_blast(make_tenant(), 0, state="planning")
    paused = make_blast(make_tenant(), 0)
    pause_blast(paused.pk)
    assert steps.finish_blasts() == 0


def test_old_idempotency_keys_and_finished_jobs_are_pruned_young_ones_and_open_jobs_stay() -> None:
    tenant = make_tenant()
    for key in ("old", "young"):
        submit(tenant, **request(tenant), idempotency_key=key)
    long_ago = timezone.now() - timedelta(days=steps.KEEP_DAYS, minutes=1)
    IdempotencyKey.objects.filter(key="old").update(created_at=long_ago)
    for key, done_at in (("old", long_ago), ("young", timezone.now()), ("open", None)):
        ProcessedJob.objects.create(job_key=key, lease_until=long_ago, done_at=done_at)
    assert steps.prune() == 2
    assert set(IdempotencyKey.objects.values_list("key", flat=True)) == {"young"}
    assert set(ProcessedJob.objects.values_list("job_key", flat=True)) == {"young", "open"}


def test_a_rail_with_work_and_an_empty_queue_gets_one_ticket(redis: Redis) -> None:
    tenant = make_tenant()
    submit_some(tenant, 3)
    insert_raw(tenant, 2)
    redis.flushdb()
    assert (re_ticket(), queues.depth(EMAIL_OTP), queues.depth(EMAIL_BULK)) == (2, 1, 1)
    assert (re_ticket(), queues.depth(EMAIL_OTP)) == (0, 1)


def test_a_rail_without_work_gets_no_ticket() -> None:
    make_tenant()
    assert (re_ticket(), queues.depth(EMAIL_OTP)) == (0, 0)


def test_a_dead_lease_gets_a_ticket() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO messaging_batches (id, provider, channel, rail, state, send_ids, digest, idempotency_key,"
            " rendered_at, attempts) VALUES (gen_random_uuid(), 'resend', 'email', 'transactional', 'claimed',"
            " ARRAY[gen_random_uuid()], '', 'k', now(), 1) RETURNING id"
        )
        batch = cursor.fetchone()[0]
    ProcessedJob.objects.create(job_key=f"batch:{batch}", lease_until=_soon())
    assert re_ticket() == 0
    ProcessedJob.objects.update(lease_until=_past())
    assert (re_ticket(), queues.depth(EMAIL_OTP)) == (1, 1)


def test_two_clocks_at_once_do_everything_once() -> None:
    tenant = make_tenant()
    submit_some(tenant, 400, not_before=_soon())
    Send.objects.update(not_before=_past())
    blast = make_blast(tenant, 0)
    moved: list[int] = []

    def clock() -> None:
        try:
            moved.extend(run_once().moved["wake"] for _ in range(5))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=clock) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(moved), statuses()) == (400, {"queued": 400})
    blast.refresh_from_db()
    assert blast.state == "finished"


def test_a_beat_with_redis_away_still_serves_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    submit_some(make_tenant(), 1, not_before=_soon())
    Send.objects.update(not_before=_past())
    monkeypatch.setattr(queues, "quick_client", lambda: Redis.from_url("redis://127.0.0.1:1"))
    beat = run_once()
    assert (beat.failed, beat.moved["wake"], statuses()) == (("re_ticket",), 1, {"queued": 1})


def test_an_idle_beat_costs_a_bounded_number_of_statements(redis: Redis) -> None:
    for _ in range(20):
        make_blast(make_tenant(), 3)
    run_once()
    before = redis.info("stats")["total_commands_processed"]
    run_once(1)
    assert redis.info("stats")["total_commands_processed"] - before <= 8
