"""The clock's steps: what time alone makes true, in bounded pieces, with two clocks at once, with parts missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, connections
from django.utils import timezone
from redis import Redis

from core.broker import queues
from core.models import ProcessedJob, Tenant
from devtools.stack import url_of
from messaging.clock import run_once
from messaging.clock.tickets import re_ticket
from messaging.domain.rails import Channel, Rail, queue_name
from messaging.ledger import sweeps
from messaging.models import BlastHint, BlastMark, Send, SenderHold
from messaging.services.control import cancel_blast, pause_blast, pause_tenant_lane
from tests.factories import insert_raw, make_blast, make_tenant, statuses, submit_some
from tests.messaging.ledger.plans import generic_plan
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
    assert (sweeps.wake(), statuses()) == (0, {"scheduled": 2})
    Send.objects.update(not_before=_past())
    assert (sweeps.wake(), statuses()) == (2, {"queued": 2})


def test_a_scheduled_send_that_has_run_out_expires_instead() -> None:
    submit_some(make_tenant(), 1, not_before=_soon(), expires_at=_soon() + timedelta(hours=1))
    Send.objects.update(not_before=_past(), expires_at=_past())
    sweeps.wake()
    assert statuses() == {"expired": 1}


def test_waiting_sends_expire() -> None:
    tenant = make_tenant()
    submit_some(tenant, 2, expires_at=_soon())
    submit_some(tenant, 2)
    Send.objects.filter(expires_at__isnull=False).update(expires_at=_past())
    assert (sweeps.expire(), statuses()) == (2, {"expired": 2, "queued": 2})


@pytest.mark.parametrize("step", [sweeps.wake, sweeps.expire])
def test_a_step_is_bounded_and_the_next_beat_goes_on(step: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "LIMIT", 3)
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
    assert (sweeps.clear_cancelled(), statuses()) == (4, {"cancelled": 4, "sending": 1})


def test_hints_follow_the_facts_both_ways() -> None:
    blast = make_blast(make_tenant(), 3)
    first = Send.objects.order_by("id").first()
    assert first is not None
    hint = BlastHint.objects.get(pk=blast.pk)
    BlastHint.objects.update(has_due=False, low=None)
    assert sweeps.refresh_hints() == 1
    hint.refresh_from_db()
    assert (hint.has_due, hint.low) == (True, first.pk)
    # A send that went back to waiting below `low` is found again.
    Send.objects.filter(pk=first.pk).update(status="sending", batch_id=first.pk)
    assert sum(sweeps.refresh_hints() for _ in range(sweeps.TURNS)) == 1
    hint.refresh_from_db()
    assert hint.low > first.pk
    Send.objects.filter(pk=first.pk).update(status="queued")
    sweeps.refresh_hints()
    assert BlastMark.objects.count() == 0
    hint.refresh_from_db()
    assert hint.low == first.pk
    Send.objects.update(status="sent", accepted_at=timezone.now())
    sweeps.refresh_hints()
    hint.refresh_from_db()
    assert hint.has_due is False
    assert sweeps.refresh_hints() == 0


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
    assert sweeps.finish_blasts() == 0
    blast.refresh_from_db()
    assert (blast.state, blast.finished_at) == ("running", None)


def test_a_blast_without_an_open_send_is_finished_also_with_ambiguous_ones() -> None:
    blast = make_blast(make_tenant(), 3)
    Send.objects.update(status="sent", accepted_at=timezone.now())
    one = Send.objects.first()
    assert one is not None
    Send.objects.filter(pk=one.pk).update(status="ambiguous", batch_id=one.pk)
    sweeps.refresh_hints()
    assert sweeps.finish_blasts() == 1
    blast.refresh_from_db()
    assert blast.state == "finished"
    assert blast.finished_at is not None


def test_a_planning_or_paused_blast_is_not_finished() -> None:
    make_blast(make_tenant(), 0, state="planning")
    paused = make_blast(make_tenant(), 0)
    pause_blast(paused.pk)
    assert sweeps.finish_blasts() == 0


def test_finished_jobs_are_pruned_young_ones_and_open_ones_stay() -> None:
    long_ago = timezone.now() - timedelta(days=sweeps.KEEP_DAYS, minutes=1)
    for key, done_at in (("old", long_ago), ("young", timezone.now()), ("open", None)):
        ProcessedJob.objects.create(job_key=key, lease_until=long_ago, done_at=done_at)
    assert sweeps.prune() == 1
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
    assert redis.info("stats")["total_commands_processed"] - before <= 10


# ------------------------------------------------------------------------------------------------------ sender domains


def _hold(domain: str, *, code: str = "refused", until: Any = None, written_at: Any = None) -> SenderHold:
    hold = SenderHold.objects.create(channel="email", domain=domain, hold_code=code, hold_seconds=10, held_until=until)
    SenderHold.objects.filter(pk=hold.pk).update(written_at=written_at or timezone.now())
    return hold


def _held_by(hold: int, count: int, **values: Any) -> None:
    ids = [s.id for s in submit_some(make_tenant(), count, **values)]
    Send.objects.filter(pk__in=ids).update(status="scheduled", not_before=_soon(), held_by=hold)


def test_single_sends_wait_for_as_long_as_their_domain_is_held() -> None:
    held, ended = _hold("held.org", until=_soon()), _hold("ended.org", until=_past())
    suspected = _hold("suspected.org", code="")
    for hold in (held.pk, ended.pk, suspected.pk, suspected.pk + 1):
        _held_by(hold, 3)
    assert sweeps.wake_held() == 1 + 3 + 3
    assert statuses(held_by=held.pk) == {"scheduled": 3}
    assert statuses(held_by=ended.pk) == {"scheduled": 2}, "one of them tries"
    assert statuses(held_by=None) == {"queued": 7}
    assert sweeps.wake() == 0


def test_the_first_to_try_a_domain_again_is_a_login_code() -> None:
    ended = _hold("ended.org", until=_past())
    _held_by(ended.pk, 2, category="product")
    _held_by(ended.pk, 1)
    sweeps.wake_held()
    assert Send.objects.get(status="queued").category == "transactional"


def test_a_send_that_may_not_go_tries_no_domain_for_others() -> None:
    """Of an inactive tenant, or in a paused lane, it would be due and never leave; the next beat would wake the next one."""
    ended = _hold("shared.org", until=_past())
    _held_by(ended.pk, 3)
    inactive = Send.objects.first()
    Tenant.objects.filter(pk=inactive.tenant_id).update(active=False)
    _held_by(ended.pk, 3)
    pause_tenant_lane(Tenant.objects.last(), Channel.EMAIL, Rail.TRANSACTIONAL)
    _held_by(ended.pk, 1)
    assert sweeps.wake_held() == 1
    assert Send.objects.get(status="queued").tenant_id == Tenant.objects.last().pk


def test_what_has_run_out_while_its_domain_was_held_expires() -> None:
    _held_by(1, 2, expires_at=_soon())
    Send.objects.update(expires_at=_past())
    assert (sweeps.wake_held(), statuses()) == (2, {"expired": 2})


def test_waking_what_was_held_is_bounded_and_no_domain_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "LIMIT", 5)
    monkeypatch.setattr(sweeps, "_HELD", 3)
    _held_by(1, 4)
    _held_by(2, 4)
    assert sweeps.wake_held() == 5
    assert sorted(Send.objects.filter(held_by=hold).count() for hold in (1, 2)) == [1, 2]
    assert [sweeps.wake_held(), sweeps.wake_held()] == [3, 0]


def test_holds_that_nobody_asks_about_are_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    long_ago = timezone.now() - timedelta(days=1, minutes=1)
    for n in range(2):
        _hold(f"suspected-{n}.org", code="", written_at=long_ago)
        _hold(f"ended-{n}.org", until=long_ago, written_at=long_ago)
    _hold("suspected.org", code="")
    _hold("ended.org", until=_past(), written_at=long_ago)
    _hold("held.org", until=_soon(), written_at=long_ago)
    monkeypatch.setattr(sweeps, "LIMIT", 3)
    assert [run_once().moved["prune_holds"] for _ in range(3)] == [3, 1, 0]
    assert set(SenderHold.objects.values_list("domain", flat=True)) == {"suspected.org", "ended.org", "held.org"}


def test_waking_reads_no_send_that_goes_on_waiting() -> None:
    """Twenty domains with a thousand sends each; one is held no more, one is to be tried. All others cost a look at the index."""
    holds = [_hold(f"{n}.org", until=_soon()).pk for n in range(20)]
    insert_raw(make_tenant(), 20_000, category="product")
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH n AS (SELECT id, row_number() OVER () AS n FROM messaging_sends) UPDATE messaging_sends s"
            " SET status = 'scheduled', not_before = %s, held_by = (%s::bigint[])[1 + n.n %% 20] FROM n WHERE n.id = s.id",
            [_soon(), holds],
        )
        cursor.execute("VACUUM ANALYZE messaging_sends")
    SenderHold.objects.filter(pk=holds[7]).delete()
    SenderHold.objects.filter(pk=holds[9]).update(held_until=_past())
    plan = generic_plan(sweeps._WAKE_HELD, {"limit": 5_000, "few": 10})
    assert plan.offences() == []
    assert plan.buffers < 1_000
    assert statuses() == {"queued": 11, "scheduled": 19_989}


def test_on_a_server_that_takes_no_writes_a_beat_fails_and_the_next_one_has_another_connection() -> None:
    """A failover: the primary that this process is connected to has become a standby."""
    submit_some(make_tenant(), 1, not_before=_soon())
    Send.objects.update(not_before=_past())
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    assert "wake" in run_once().failed
    assert run_once().failed == ()
    assert statuses() == {"queued": 1}


def test_no_step_waits_for_a_row_that_another_clock_has_locked_and_left() -> None:
    blast = make_blast(make_tenant(), 2)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO messaging_blast_paces (blast_id, at, n) VALUES (%s, '2000-01-01', 1)", [blast.pk])
    with psycopg.connect(url_of(connection.settings_dict)) as other:
        other.execute("SELECT FROM messaging_blast_paces FOR UPDATE")
        other.execute("SELECT FROM messaging_sends FOR UPDATE")
        other.execute("SELECT FROM messaging_blasts FOR UPDATE")
        other.execute("SELECT FROM messaging_blast_deltas FOR UPDATE")
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = 1")
        assert run_once().failed == ()
    with connection.cursor() as cursor:
        cursor.execute("RESET lock_timeout")


def test_a_ticket_that_nobody_fetches_is_told_of_again(redis: Redis) -> None:
    """Whoever was woken for it may be frozen, and others would look only seconds later."""
    submit_some(make_tenant(), 1)
    wakes = f"dramatiq:{EMAIL_OTP}.wake"
    redis.delete(wakes)
    assert (re_ticket(), queues.depth(EMAIL_OTP), redis.llen(wakes)) == (0, 1, 1)
