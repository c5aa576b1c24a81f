"""What is wrong with one tenant, lane, content or part of the platform costs the others nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from core.models import DeadLetter, Tenant
from core.security import crypto
from messaging.clock import run_once
from messaging.dispatch import scheduler, turn
from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel, Rail
from messaging.ledger import buckets, lanes, sweeps
from messaging.ledger.contents import kept
from messaging.ledger.lane_marks import judge_lanes
from messaging.models import Batch, BlastHint, Content, DueLane, RateLimitBucket, Send, TenantLane
from messaging.providers.base import Confirmation
from messaging.providers.registry import adapter_for, adapters
from messaging.providers.resend.adapter import ResendAdapter
from messaging.services.control import cancel_blast
from tests.factories import make_blast, make_content, make_tenant, statuses, submit_some
from tests.rig import Rig, prepare


@contextmanager
def _somebody_else() -> Iterator[psycopg.Connection[Any]]:
    """Another connection, in a transaction that stays open."""
    keys = ("dbname", "user", "password", "host", "port")
    with psycopg.connect(**{k: v for k, v in connection.get_connection_params().items() if k in keys}) as other:
        yield other
        other.rollback()


@pytest.fixture
def impatient(rig: Rig) -> Iterator[None]:
    """This process waits for no lock longer than a second: a test fails instead of hanging."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1s'")
    yield
    with connection.cursor() as cursor:
        cursor.execute("RESET lock_timeout")


def _spoil(content: Content, sealed: bytes) -> None:
    Content.objects.filter(pk=content.pk).update(sealed=sealed)
    kept.clear()


# ---------------------------------------------------------------------------------------------- contents, keys, templates


def _wake() -> None:
    """As if the time had come for all that waits."""
    Send.objects.filter(status="scheduled").update(not_before=timezone.now() - timedelta(seconds=1))
    sweeps.wake()


def test_a_content_sealed_with_an_unknown_key_waits_and_stops_nobody(rig: Rig) -> None:
    bad, good = make_tenant("bad"), make_tenant("good")
    submit_some(bad, 2)
    submit_some(good, 2, text="other {{ code }}")
    content = Content.objects.get(tenant=bad)
    sealed = bytes(content.sealed)
    _spoil(content, b"\x01\x03old" + bytes(40))
    rig.drain()
    assert (statuses(tenant=good), statuses(tenant=bad)) == ({"sent": 2}, {"scheduled": 2})
    assert set(Send.objects.filter(tenant=bad).values_list("error_code", flat=True)) == {"unknown_encryption_key"}
    assert not TenantLane.objects.exists()
    _spoil(content, sealed)
    _wake()
    rig.drain()
    assert (statuses(), DeadLetter.objects.count()) == ({"sent": 4}, 0)


def test_a_damaged_content_fails_its_single_sends_and_holds_a_blast(rig: Rig) -> None:
    bad = make_tenant("bad")
    single = submit_some(bad, 1)[0]
    blast = make_blast(make_tenant("blaster"), 3)
    _spoil(Content.objects.get(tenant=bad), b"\x01")
    _spoil(blast.content, b"\x01")
    rig.drain()
    rig.drain(Rail.MARKETING)
    assert DeadLetter.objects.get().send_id == single.id
    blast.refresh_from_db()
    assert (statuses(blast=blast), blast.hold_code) == ({"queued": 3}, "content_damaged")


def test_a_worker_without_the_new_key_dead_letters_nothing(rig: Rig, settings: Any) -> None:
    """The content was stored before the roll-out and opens; the recipients were sealed with the new key."""
    submit_some(make_tenant(), 300)
    rig.turn()
    keys = settings.ENCRYPTION_KEYS
    settings.ENCRYPTION_KEYS = {"other": b"x" * 32}
    crypto.keyring.cache_clear()
    try:
        for _ in range(2):  # a turn that can read nothing makes no request
            rig.turn()
    finally:
        settings.ENCRYPTION_KEYS = keys
        crypto.keyring.cache_clear()
    assert (statuses(), DeadLetter.objects.count()) == ({"sent": 100, "scheduled": 200}, 0)
    _wake()
    rig.drain()
    assert statuses() == {"sent": 300}


def test_a_costly_template_shares_its_batch_in_turn_and_does_not_fill_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes too long to render goes back; the other tenant's send is among the first to be rendered."""
    costly, quick = make_tenant("costly"), make_tenant("quick")
    submit_some(costly, 60, text="{% for i in (1..4000) %}{{ i }}{% endfor %}")
    submit_some(quick, 1)
    rig.turn()
    assert statuses(tenant=quick) == {"sent": 1}
    assert 1 <= statuses(tenant=costly)["sent"] < 60
    rig.drain()
    assert statuses() == {"sent": 61}


def test_large_bodies_of_one_tenant_leave_room_for_another(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = make_tenant("large"), make_tenant("small")
    submit_some(large, 400, category="marketing", text="x" * 1000)
    submit_some(small, 10, category="marketing")
    monkeypatch.setattr(type(adapter_for(Channel.EMAIL)), "max_body_bytes", 40_000)
    rig.turn(Rail.MARKETING)
    assert statuses(tenant=small) == {"sent": 10}


# ------------------------------------------------------------------------------------------------------------ locks, clock


def test_a_lane_that_somebody_changes_is_left_out_and_nobody_waits(rig: Rig, impatient: None) -> None:
    """A's application paused its lane in a transaction that it keeps open."""
    a, b = make_tenant("a"), make_tenant("b")
    submit_some(a, 1)
    submit_some(b, 1)
    with _somebody_else() as other:
        other.execute("SELECT FROM core_tenants WHERE id = %s FOR NO KEY UPDATE", [a.pk])
        rig.turn()
        assert (statuses(tenant=a), statuses(tenant=b)) == ({"queued": 1}, {"sent": 1})
    scheduler._memories.clear()
    rig.turn()
    assert statuses() == {"sent": 2}
    assert rig.governor.spent() == rig.sandbox.stats()["requests_received"]


def test_a_claim_passes_over_sends_that_somebody_has_in_hand(rig: Rig, impatient: None) -> None:
    """Another worker's claim is not yet committed: this one takes the next sends and waits for nothing."""
    sends = submit_some(make_tenant(), 3)
    with _somebody_else() as other:
        other.execute("SELECT FROM messaging_sends WHERE id = %s FOR UPDATE", [sends[0].id])
        rig.turn()
    assert statuses() == {"sent": 2, "queued": 1}


def test_a_locked_blast_does_not_stop_the_clock(rig: Rig, impatient: None) -> None:
    locked, free = make_blast(make_tenant("a"), 3), make_blast(make_tenant("b"), 3)
    with _somebody_else() as other:
        other.execute("SELECT FROM messaging_blasts WHERE id = %s FOR UPDATE", [locked.pk])
        other.execute("SELECT FROM messaging_blast_hints WHERE blast_id = %s FOR UPDATE", [locked.pk])
        assert run_once(1).failed == ()
        assert [hint.pk for hint in BlastHint.objects.filter(low__isnull=False)] == [free.pk]
    run_once(1)
    assert BlastHint.objects.filter(low__isnull=False).count() == 2


def test_a_blast_that_claims_hold_all_the_time_gets_its_hint(rig: Rig) -> None:
    blast = make_blast(make_tenant(), 3)
    with _somebody_else() as other:
        other.execute("SELECT FROM messaging_blasts WHERE id = %s FOR KEY SHARE", [blast.pk])
        assert sweeps.refresh_hints() == 1


def test_the_clock_s_hints_stop_no_claim(rig: Rig, impatient: None) -> None:
    blast = make_blast(make_tenant(), 3)
    with _somebody_else() as other:
        other.execute("UPDATE messaging_blast_hints SET has_due = true WHERE blast_id = %s", [blast.pk])
        rig.turn(Rail.MARKETING)
    assert statuses() == {"failed": 3}  # claimed; what SQL wrote cannot be opened


def test_a_login_code_wakes_before_the_blast_that_was_due_earlier(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "LIMIT", 50)
    a, b = make_tenant("a"), make_tenant("b")
    make_blast(a, 200)
    submit_some(b, 1)
    Send.objects.filter(tenant=a).update(status="scheduled", not_before=timezone.now() - timedelta(seconds=9))
    Send.objects.filter(tenant=b).update(status="scheduled", not_before=timezone.now() - timedelta(seconds=1))
    run_once(1)
    assert statuses(tenant=b) == {"queued": 1}


def test_clearing_cancelled_blasts_is_bounded_and_passes_over_those_that_wait_for_an_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "LIMIT", 20)
    tenant = make_tenant()
    for _ in range(30):
        bound = make_blast(tenant, 1)
        Send.objects.filter(blast=bound).update(status="sending", batch_id=bound.pk)
        Batch.objects.create(
            id=bound.pk,
            provider="resend",
            channel="email",
            rail="marketing",
            state="unknown",
            send_ids=list(Send.objects.filter(blast=bound).values_list("pk", flat=True)),
            digest=b"",
            idempotency_key="k",
            rendered_at=timezone.now(),
        )
        cancel_blast(bound.pk)
    last = make_blast(tenant, 50)
    cancel_blast(last.pk)
    moved = [run_once(1).moved["clear_cancelled"] for _ in range(4)]
    assert moved == [20, 20, 10, 0]
    assert statuses(blast=last) == {"cancelled": 50}


# ------------------------------------------------------------------------------------------------------- the ring, lanes


CLOSED: dict[str, str] = {
    "inactive": "UPDATE core_tenants SET active = false WHERE slug LIKE 'closed-%'",
    "paused": (
        "INSERT INTO messaging_tenant_lanes (tenant_id, channel, rail, priority, paused, isolated, hold_code, hold_detail,"
        " hold_seconds) SELECT id, 'email', 'transactional', 0, true, false, '', '', 0 FROM core_tenants"
        " WHERE slug LIKE 'closed-%'"
    ),
    "held": (
        "INSERT INTO messaging_tenant_lanes (tenant_id, channel, rail, priority, paused, isolated, hold_code, hold_detail,"
        " hold_seconds, held_until) SELECT id, 'email', 'transactional', 0, false, true, 'refused', '', 600,"
        " now() + interval '10 minutes' FROM core_tenants WHERE slug LIKE 'closed-%'"
    ),
}


def _crowd(content: int, count: int) -> None:
    """As many tenants, each with one code that is due."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO core_tenants (slug, name, active) SELECT 'closed-' || i, 'x', true FROM generate_series(1, %s) i",
            [count],
        )
        cursor.execute(
            "INSERT INTO messaging_sends (id, tenant_id, content_id, channel, category, rail, priority, status,"
            " fingerprint, sealed, attempts) SELECT gen_random_uuid(), t.id, %s, 'email', 'transactional', 'transactional',"
            " 0, 'queued', '\\x00', '\\x00', 0 FROM core_tenants t WHERE slug LIKE 'closed-%%'",
            [content],
        )


@pytest.mark.parametrize("how", CLOSED)
def test_closed_tenants_hide_nobody_while_a_busy_one_always_has_work(rig: Rig, how: str) -> None:
    busy = make_tenant("busy")
    submit_some(busy, 500)
    _crowd(make_content(busy), 5_000)
    with connection.cursor() as cursor:
        cursor.execute(CLOSED[how])
    last = make_tenant("last")
    while judge_lanes():
        pass
    submit_some(last, 1)
    rig.turn()
    rig.turn()
    assert (set(statuses(tenant=last)), statuses(tenant=busy)["queued"] > 0) == ({"sent"}, True)


def test_starved_tenants_take_no_places_and_hide_nobody(rig: Rig) -> None:
    busy = make_tenant("busy")
    submit_some(busy, 300)
    _crowd(make_content(busy), 1_500)
    starved = list(Tenant.objects.filter(slug__startswith="closed-").values_list("pk", flat=True))
    scheduler.memory_of("resend", Channel.EMAIL, Rail.TRANSACTIONAL).exclude_for(starved, 60)
    last = make_tenant("last")
    submit_some(last, 1)
    rig.turn()
    assert set(statuses(tenant=last)) == {"sent"}


@pytest.mark.parametrize("how", CLOSED)
def test_a_lane_that_opens_again_is_found_at_once(rig: Rig, how: str) -> None:
    """Without a beat of the clock: what opens it leaves a mark."""
    tenant = make_tenant("closed-x")
    submit_some(tenant, 1)
    with connection.cursor() as cursor:
        cursor.execute(CLOSED[how])
    judge_lanes()
    assert [lane.judged and lane.closed_until is not None for lane in DueLane.objects.all()] == [True]
    assert rig.turn() is None
    TenantLane.objects.all().update(paused=False, held_until=timezone.now())
    Tenant.objects.all().update(active=True)
    rig.turn()
    assert statuses() == {"sent": 1}


def test_a_lane_that_goes_alone_is_not_kept_out_by_the_others(rig: Rig) -> None:
    a, b, c = (make_tenant(slug) for slug in "abc")
    for tenant in (a, c):
        submit_some(tenant, 600, category="marketing")
    submit_some(b, 1, category="marketing")
    lanes.isolate(Channel.EMAIL, Rail.MARKETING, [LaneKey(b.pk, None, 2)])
    rig.turn(Rail.MARKETING)
    rig.turn(Rail.MARKETING)
    assert statuses(tenant=b) == {"sent": 1}


def test_a_lane_that_goes_alone_and_has_no_tokens_keeps_nobody_waiting(rig: Rig) -> None:
    poor, other = make_tenant("poor"), make_tenant("other")
    RateLimitBucket.objects.create(
        provider="resend", scope="tenant", unit="send", tenant=poor, capacity=1, refill_per_second=0.01
    )
    buckets.forget()
    submit_some(poor, 3)
    rig.turn()
    lanes.isolate(Channel.EMAIL, Rail.TRANSACTIONAL, [LaneKey(poor.pk, None, 0)])  # its turn is next
    submit_some(other, 1)
    rig.turn()
    assert (statuses(tenant=poor), statuses(tenant=other)) == ({"sent": 1, "queued": 2}, {"sent": 1})


def test_product_mail_that_goes_alone_is_not_kept_out_by_login_codes(rig: Rig) -> None:
    a, b = make_tenant("a"), make_tenant("b")
    submit_some(b, 1, category="product")
    lanes.isolate(Channel.EMAIL, Rail.TRANSACTIONAL, [LaneKey(b.pk, None, 1)])
    for _ in range(3):
        submit_some(a, 1)
        rig.turn()
    assert statuses(tenant=b) == {"sent": 1}


def test_a_raised_tenant_bucket_acts_within_seconds(rig: Rig) -> None:
    tenant = make_tenant()
    row = RateLimitBucket.objects.create(
        provider="resend", scope="tenant", unit="send", tenant=tenant, capacity=1, refill_per_second=0.001
    )
    buckets.forget()
    submit_some(tenant, 2)
    rig.turn()
    assert rig.turn() is None or statuses() == {"sent": 1, "queued": 1}
    RateLimitBucket.objects.filter(pk=row.pk).update(capacity=1000, refill_per_second=1000)
    deadline = time.monotonic() + 5
    while statuses() != {"sent": 2}:
        assert time.monotonic() < deadline
        rig.turn()


# --------------------------------------------------------------------------------------------------- the provider's side


def test_our_own_slowness_is_not_the_provider_s_fault(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "LEASE_MARGIN", 25.0)  # as if each claim had taken 16 s
    tenant = make_tenant()
    for _ in range(4):
        submit_some(tenant, 1)
        rig.turn()
    assert (statuses(), set(Send.objects.values_list("attempts", flat=True))) == ({"queued": 4}, {0})
    assert (rig.circuit(), rig.governor.spent(), rig.sandbox.stats()["requests_received"]) == ("", 0, 0)


def test_a_repetition_that_was_held_up_for_too_long_leaves_its_sends_bound(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request was made now, but one was before: they must not go out under another key."""
    submit_some(make_tenant(), 3)
    rig.sandbox.fault("drop_after_accept", count=1)
    rig.turn()
    rig.lapse_leases()
    monkeypatch.setattr(turn, "LEASE_MARGIN", 25.0)
    rig.turn()
    assert (statuses(), rig.batch().state) == ({"sending": 3}, "unknown")
    assert rig.governor.spent() == rig.sandbox.stats()["requests_received"] == 1
    monkeypatch.undo()
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.sandbox.stats()["doubles"]) == ({"sent": 3}, 0)


def test_miscounts_with_other_trouble_between_them_end_too(rig: Rig) -> None:
    submit_some(make_tenant(), 2)
    for fault in ("too_few_ids", "500", "too_few_ids"):
        rig.sandbox.fault(fault, count=1)
        rig.turn()
        rig.unblock()
        rig.lapse_leases()
    assert statuses() == {"ambiguous": 2}


def test_an_answer_is_recorded_when_the_database_is_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    submit_some(make_tenant(), 2)
    real, failures = turn.record_answer, [OperationalError("gone"), OperationalError("gone")]

    def record_answer(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*args, **options)

    monkeypatch.setattr(turn, "record_answer", record_answer)
    rig.turn()
    assert (statuses(), rig.sandbox.stats()["requests_received"]) == ({"sent": 2}, 1)


def test_an_answer_is_recorded_although_the_server_ended_the_transaction_that_did_so_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stood still in it for too long, and goes on within its lease."""
    submit_some(make_tenant(), 2)
    real, standing = turn.record_answer, [True]

    def record_answer(*args: Any, **options: Any) -> Any:
        with transaction.atomic():
            if standing:
                standing.clear()
                _stand_still()
            return real(*args, **options)

    monkeypatch.setattr(turn, "record_answer", record_answer)
    rig.turn()
    assert (statuses(), rig.sandbox.stats()["requests_received"]) == ({"sent": 2}, 1)


def _stand_still() -> None:
    """In a transaction, until the server has ended the session."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', '1', true), pg_backend_pid()")
        (_, me) = cursor.fetchone()
    with _somebody_else() as other:
        other.autocommit = True
        while other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [me]).fetchone():
            other.execute("SELECT pg_sleep(0.005)")


def test_a_batch_that_somebody_has_locked_hides_neither_other_batches_nor_codes(rig: Rig, impatient: None) -> None:
    """Its worker vanished in the midst of recording: whoever looks goes on to what can be had, and spends nothing on this."""
    for n in range(2):
        rig.sandbox.fault("500", count=1)
        submit_some(make_tenant(), 1 + n)
        rig.turn()
    rig.lapse_leases()
    stuck, other_batch = rig.batches()
    with _somebody_else() as other:
        other.execute("SELECT FROM messaging_batches WHERE id = %s FOR UPDATE", [stuck.pk])
        other.execute("UPDATE core_processed_jobs SET done_at = now() WHERE job_key = %s", [f"batch:{stuck.pk}"])
        submit_some(make_tenant(), 3)
        states = [recorded.state for recorded in rig.drain(at_most=3)]
        assert states == ["accepted", "accepted"]
        assert statuses() == {"sending": 1, "sent": 5}
        assert rig.governor.spent() == rig.sandbox.stats()["requests_received"] == 4
        other_batch.refresh_from_db()
        assert (other_batch.state, other_batch.attempts) == ("accepted", 2)
    rig.drain()
    assert (statuses(), rig.sandbox.stats()["doubles"]) == ({"sent": 6}, 0)


def test_a_lane_that_cannot_be_held_just_now_keeps_no_claimed_batch_from_leaving(rig: Rig) -> None:
    """Nor for as long as a statement may wait for a lock: whoever has it may stand still, and the leader's others wait."""
    blast, other_tenant = make_blast(make_tenant(), 1), make_tenant()
    submit_some(other_tenant, 1, category="marketing")
    _spoil(blast.content, b"\x01\x03old" + bytes(40))
    with _somebody_else() as other:  # as a claim that stands still
        other.execute("SELECT FROM messaging_blasts WHERE id = %s FOR SHARE", [blast.pk])
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = 0")  # for ever
        rig.turn(Rail.MARKETING)
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")
    assert statuses(tenant=other_tenant) == {"sent": 1}
    assert statuses(blast=blast) == {"queued": 1}


class _AtMostOnce(ResendAdapter):
    """A provider that knows no idempotency keys."""

    confirmation = Confirmation.AT_MOST_ONCE

    def send(self, body: bytes, **options: Any) -> Any:
        return super().send(body, **(options | {"idempotency_key": f"another-{time.monotonic_ns()}"}))


def test_a_provider_without_idempotency_is_not_asked_twice_after_a_worker_vanished(rig: Rig) -> None:
    adapters()[Channel.EMAIL] = _AtMostOnce(api_key="re_sandbox", base_url=rig.sandbox.url)
    submit_some(make_tenant(), 3)
    line = turn.Line(adapters()[Channel.EMAIL], turn.governor_of("resend"), Channel.EMAIL, Rail.TRANSACTIONAL)
    grant = scheduler.search(line.adapter, line.governor, line.channel, line.rail, line.memory)
    assert isinstance(grant, scheduler.Grant)
    bound = prepare(line, grant)
    assert bound is not None
    turn._call(line.adapter, bound, time.monotonic())  # sent; the worker dies before it records
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.batch().error_code) == ({"ambiguous": 3}, "cannot_be_repeated")
    assert rig.sandbox.stats()["doubles"] == 0


class _Other(ResendAdapter):
    name = "other"


def test_a_batch_is_not_repeated_through_another_provider(rig: Rig) -> None:
    RateLimitBucket.objects.create(
        provider="other", scope="global", unit="request", capacity=100, refill_per_second=100
    )
    buckets.forget()
    submit_some(make_tenant(), 3)
    rig.sandbox.fault("500", count=1)
    rig.turn()
    adapters()[Channel.EMAIL] = _Other(api_key="re_sandbox", base_url=rig.sandbox.url)
    rig.lapse_leases()
    assert rig.turn() is None
    assert (rig.batch().state, rig.sandbox.stats()["requests_received"]) == ("unknown", 1)
