"""One ticket, one turn: what goes into a batch, what it costs, and what happens when things change under way."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_module
from django.db import connection, connections, transaction
from django.utils import timezone

from core.broker import queues
from core.models import DeadLetter, Tenant
from messaging.channels.sealing import seal_recipient
from messaging.dispatch import outcomes, turn
from messaging.dispatch.forming import form_batch
from messaging.dispatch.recording import Recorded, record_answer
from messaging.dispatch.scheduler import Grant, Wait, memory_of, search
from messaging.domain.lifecycle import BatchState
from messaging.domain.rails import Channel, Rail, queue_name
from messaging.ledger import buckets, recover
from messaging.ledger.contents import kept
from messaging.models import Batch, Blast, Content, RateLimitBucket, Send
from messaging.providers.base import Answer, Verdict
from messaging.providers.registry import adapter_for
from messaging.services.control import cancel_blast, pause_blast, pause_tenant_lane, resume_tenant_lane
from messaging.services.submit import submit_many
from tests.factories import hint_due, make_tenant, request, statuses, submit_some
from tests.rig import Rig, prepare, seed_buckets


def _spent_equals_requests(rig: Rig) -> bool:
    return rig.governor.spent() == rig.sandbox.stats()["requests_received"]


def _recipients(rig: Rig) -> list[list[str]]:
    """Recipients by request."""
    found: dict[int, list[str]] = {}
    for line in rig.sandbox.log():
        found.setdefault(line["request"], []).append(line["to"][0])
    return [sorted(found[k]) for k in sorted(found)]


def _into_blast(tenant: Tenant, count: int, **values: Any) -> Blast:
    """A blast with sends that can be rendered."""
    sends = submit_some(tenant, count, category="marketing", **values)
    send = Send.objects.get(pk=sends[0].id)
    blast = Blast.objects.create(
        tenant=tenant,
        content_id=send.content_id,
        channel="email",
        category="marketing",
        rail="marketing",
        priority=2,
        state="running",
    )
    hint_due(blast)
    Send.objects.filter(pk__in=[s.id for s in sends]).update(blast=blast)
    return blast


def test_one_send_leaves_at_once_as_a_batch_of_one(rig: Rig) -> None:
    submit_some(make_tenant(), 1)
    rig.turn()
    assert (rig.sandbox.stats()["batches_accepted"], rig.sandbox.stats()["items_per_batch_max"]) == (1, 1)


def test_a_batch_is_formed_from_all_tenants_with_something_due(rig: Rig) -> None:
    """1,000 sends of 200 tenants are 10 requests."""
    for _ in range(200):
        submit_some(make_tenant(), 5, category="marketing")
    done = rig.drain(Rail.MARKETING)
    assert (statuses(), len(done)) == ({"sent": 1000}, 10)
    assert _spent_equals_requests(rig)


def test_300_waiting_otps_are_three_requests(rig: Rig) -> None:
    submit_some(make_tenant(), 300)
    assert len(rig.drain()) == 3
    assert _spent_equals_requests(rig)


def test_a_ticket_is_at_most_one_request(rig: Rig) -> None:
    submit_some(make_tenant(), 300)
    rig.turn()
    assert rig.sandbox.stats()["requests_received"] == 1


def test_a_ticket_for_nothing_makes_no_request_and_takes_no_token(rig: Rig) -> None:
    assert rig.turn() is None
    assert (rig.governor.spent(), rig.sandbox.stats()["requests_received"]) == (0, 0)


def test_rails_never_mix(rig: Rig) -> None:
    tenant = make_tenant()
    submit_some(tenant, 5, category="marketing")
    submit_some(tenant, 5, category="product")
    submit_some(tenant, 5)
    rig.drain()
    rig.drain(Rail.MARKETING)
    for batch in rig.batches():
        rails = set(Send.objects.filter(pk__in=batch.send_ids).values_list("rail", flat=True))
        assert rails == {batch.rail}


def test_otps_go_before_product_mail_of_any_tenant(rig: Rig) -> None:
    loud, quiet = make_tenant("loud"), make_tenant("quiet")
    submit_some(loud, 250, category="product")
    submit_some(quiet, 3)
    submit_some(loud, 2)
    rig.turn()
    first = Send.objects.filter(pk__in=rig.batches()[0].send_ids)
    assert first.filter(category="transactional").count() == 5
    assert first.filter(category="product").count() == 95


def test_a_backlog_is_shared_max_min_between_tenants(rig: Rig) -> None:
    big, small = make_tenant("big"), make_tenant("small")
    submit_some(big, 500, category="marketing")
    submit_some(small, 30, category="marketing")
    rig.turn(Rail.MARKETING)
    assert (statuses(tenant=small), statuses(tenant=big)) == ({"sent": 30}, {"sent": 70, "queued": 430})


def test_within_a_tenant_the_oldest_goes_first(rig: Rig) -> None:
    tenant = make_tenant()
    early = _into_blast(tenant, 60)
    late = _into_blast(tenant, 60)
    rig.turn(Rail.MARKETING)
    assert statuses(blast=early) == {"sent": 60}
    assert statuses(blast=late) == {"sent": 40, "queued": 20}


def test_work_left_behind_leaves_the_next_ticket_before_the_request(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    submit_some(make_tenant(), 150)
    rig.redis.delete(f"dramatiq:{queue_name(Channel.EMAIL, Rail.TRANSACTIONAL)}")
    depth_at_request = []
    real = turn._call

    def call(*args: Any) -> Answer:
        depth_at_request.append(queues.depth(queue_name(Channel.EMAIL, Rail.TRANSACTIONAL)))
        return real(*args)

    monkeypatch.setattr(turn, "_call", call)
    rig.turn()
    assert depth_at_request == [1]


def test_paused_lanes_send_nothing_and_cost_the_others_nothing(rig: Rig) -> None:
    paused, running = make_tenant("paused"), make_tenant("running")
    blast = _into_blast(paused, 10)
    pause_blast(blast.pk)
    submit_some(paused, 10)
    pause_tenant_lane(paused, Channel.EMAIL, Rail.TRANSACTIONAL)
    submit_some(running, 10)
    submit_some(running, 10, category="marketing")
    rig.drain()
    rig.drain(Rail.MARKETING)
    assert statuses(tenant=running) == {"sent": 20}
    assert statuses(tenant=paused) == {"queued": 20}
    resume_tenant_lane(paused, Channel.EMAIL, Rail.TRANSACTIONAL)
    rig.drain()
    assert statuses(tenant=paused) == {"queued": 10, "sent": 10}


def test_an_inactive_tenant_s_sends_wait(rig: Rig) -> None:
    tenant = make_tenant()
    submit_some(tenant, 3)
    Tenant.objects.update(active=False)
    assert rig.turn() is None
    Tenant.objects.update(active=True)
    rig.turn()
    assert statuses() == {"sent": 3}


def test_a_pause_between_search_and_claim_is_seen_by_the_claim(rig: Rig) -> None:
    tenant = make_tenant()
    blast = _into_blast(tenant, 3)
    grant = _grant(rig, Rail.MARKETING)
    pause_blast(blast.pk)
    adapter = adapter_for(Channel.EMAIL)
    assert adapter is not None
    claimed = form_batch(adapter, Channel.EMAIL, Rail.MARKETING, grant.batch, grant.takes)
    assert claimed.formed is None
    assert (statuses(), Batch.objects.count()) == ({"queued": 3}, 0)


def test_a_cancel_while_the_request_is_out_catches_what_comes_back(rig: Rig) -> None:
    """Cancel racing with a 429: the sends are not queued again into a lane that is gone."""
    tenant = make_tenant()
    blast = _into_blast(tenant, 3)
    line, _, bound = _claimed(rig, Rail.MARKETING)
    cancel_blast(blast.pk)
    answer = Answer(Verdict.RATE_LIMITED, 429, "rate_limit_exceeded")
    outcome = outcomes.FIRST[Verdict.RATE_LIMITED]
    record_answer(line.adapter, line.rail, bound, answer, outcome)
    assert statuses() == {"cancelled": 3}


def test_tokens_that_find_no_work_are_given_back(rig: Rig) -> None:
    tenant = make_tenant()
    blast = _into_blast(tenant, 3)
    grant = _grant(rig, Rail.MARKETING)
    assert rig.governor.spent() == 1
    cancel_blast(blast.pk)
    line = turn.Line(_adapter(), turn.governor_of("resend"), Channel.EMAIL, Rail.MARKETING)
    assert prepare(line, grant) is None
    assert rig.governor.spent() == 0


def test_expired_sends_expire_at_the_claim(rig: Rig) -> None:
    tenant = make_tenant()
    sends = submit_some(tenant, 3, expires_at=timezone.now() + timedelta(hours=1))
    Send.objects.filter(pk=sends[0].id).update(expires_at=timezone.now() - timedelta(seconds=1))
    rig.turn()
    assert statuses() == {"sent": 2, "expired": 1}


def test_only_expired_sends_make_no_request(rig: Rig) -> None:
    submit_some(make_tenant(), 2, expires_at=timezone.now() + timedelta(hours=1))
    Send.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert rig.turn() is None
    assert (statuses(), rig.governor.spent(), Batch.objects.count()) == ({"expired": 2}, 0, 0)


def test_a_template_that_fails_for_one_of_a_hundred_fails_that_one(rig: Rig) -> None:
    tenant = make_tenant()
    text = "{{ 10 | divided_by: n }}"
    submit_some(tenant, 99, text=text, variables={"n": 5})
    # What submit would refuse: variables that no check has seen.
    broken = submit_some(tenant, 1, text=text, variables={"n": 5})[0]
    Send.objects.filter(pk=broken.id).update(sealed=seal_recipient(broken.id, "a@b.org", {"n": 0}))
    rig.turn()
    assert statuses() == {"sent": 99, "failed": 1}
    assert DeadLetter.objects.get().send_id == broken.id
    assert len(rig.batch().send_ids) == 99


def test_what_does_not_fit_into_one_request_waits_for_the_next(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    submit_some(make_tenant(), 8, text="x" * 1000)
    monkeypatch.setattr(type(_adapter()), "max_body_bytes", 5000)
    done = rig.drain()
    assert statuses() == {"sent": 8}
    assert all(1 <= len(d.accepted) <= 4 for d in done)


def test_without_a_global_bucket_nothing_is_sent(rig: Rig) -> None:
    """Fail closed: what is queued waits."""
    submit_some(make_tenant(), 2)
    RateLimitBucket.objects.filter(scope="global").delete()
    buckets.forget()
    found = search(_adapter(), turn.governor_of("resend"), Channel.EMAIL, Rail.TRANSACTIONAL, _memory())
    assert isinstance(found, Wait)
    assert found.reason == "no_bucket"
    assert (statuses(), rig.sandbox.stats()["requests_received"]) == ({"queued": 2}, 0)
    seed_buckets()
    rig.turn()
    assert statuses() == {"sent": 2}


# ------------------------------------------------------------------------------------------------ crash windows, fences


def test_a_worker_that_vanished_after_its_commit_is_made_good(rig: Rig) -> None:
    """Killed between commit and request: whether it was sent cannot be told, so the same batch is repeated."""
    submit_some(make_tenant(), 3)
    _, _, bound = _claimed(rig)
    assert rig.turn() is None
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.batch().pk) == ({"sent": 3}, bound.id)
    assert (len(rig.accepted_ids()), rig.sandbox.stats()["doubles"]) == (3, 0)


def test_a_worker_that_vanished_after_the_request_sends_nothing_twice(rig: Rig) -> None:
    submit_some(make_tenant(), 3)
    line, _, bound = _claimed(rig)
    turn._call(line.adapter, bound, _now())
    rig.lapse_leases()
    rig.turn()
    assert statuses() == {"sent": 3}
    assert (len(rig.accepted_ids()), rig.sandbox.stats()["doubles"]) == (3, 0)


def test_a_fenced_out_worker_may_still_bring_an_acceptance(rig: Rig) -> None:
    """Its lease ran out, another took the batch over and heard nothing: the acceptance is a fact all the same."""
    submit_some(make_tenant(), 3)
    line, _, bound = _claimed(rig)
    answer = turn._call(line.adapter, bound, _now())
    rig.lapse_leases()
    rig.sandbox.fault("500", count=1)
    rig.turn()
    assert (statuses(), rig.batch().state) == ({"sending": 3}, BatchState.UNKNOWN)
    recorded = record_answer(line.adapter, line.rail, bound, answer, outcomes.FIRST[Verdict.ACCEPTED])
    assert len(recorded.accepted) == 3
    assert (statuses(), rig.batch().state) == ({"sent": 3}, BatchState.ACCEPTED)
    rig.lapse_leases()
    assert rig.turn() is None


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.ACCEPTED])
def test_a_fenced_out_worker_changes_nothing_else(rig: Rig, verdict: Verdict) -> None:
    submit_some(make_tenant(), 3)
    line, _, bound = _claimed(rig)
    rig.lapse_leases()
    rig.sandbox.fault("500", count=1)
    rig.turn()
    before = list(Batch.objects.values()), list(Send.objects.order_by("id").values())
    recorded = record_answer(line.adapter, line.rail, bound, Answer(verdict), outcomes.FIRST[verdict])
    assert recorded.fenced_out
    assert (list(Batch.objects.values()), list(Send.objects.order_by("id").values())) == before


def test_an_answer_that_waits_for_a_take_over_is_fenced_out_by_it(rig: Rig) -> None:
    """Both lock the batch. The statement that had to wait reads the job as the other one left it, not as it was."""
    submit_some(make_tenant(), 3)
    line, _, bound = _claimed(rig)
    rig.lapse_leases()
    taken, waits = threading.Event(), threading.Event()

    def take_over() -> None:
        with transaction.atomic():
            assert recover.take_over(bound.id) is not None
            taken.set()
            waits.wait(30)
        connection.close()

    def record() -> Recorded:
        try:
            return record_answer(line.adapter, line.rail, bound, Answer(Verdict.QUOTA), outcomes.FIRST[Verdict.QUOTA])
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(take_over)
        assert taken.wait(30)
        second = pool.submit(record)
        while not _somebody_waits_for_a_lock():
            assert not second.done()
        waits.set()
        first.result(30)
        assert second.result(30).fenced_out
    assert (statuses(), rig.batch().state) == ({"sending": 3}, BatchState.UNKNOWN)


def _somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')")
        return bool(cursor.fetchone()[0])


def test_a_batch_that_renders_differently_today_is_ambiguous_and_not_sent(rig: Rig) -> None:
    """A deploy that changes rendering while a batch is unknown."""
    submit_some(make_tenant(), 2)
    _claimed(rig)
    Batch.objects.update(digest=b"another rendering".ljust(32, b"."))
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.batch().state, rig.batch().error_code) == ({"ambiguous": 2}, "ambiguous", "digest_differs")
    assert (rig.sandbox.stats()["requests_received"], rig.governor.spent()) == (0, 1)


def test_a_batch_older_than_the_provider_remembers_keys_is_ambiguous(rig: Rig) -> None:
    submit_some(make_tenant(), 2)
    _claimed(rig)
    Batch.objects.update(created_at=timezone.now() - timedelta(hours=23, minutes=1))
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.batch().error_code) == ({"ambiguous": 2}, "replay_too_late")


def test_a_bound_batch_is_repeated_however_long_ago_a_member_expired(rig: Rig) -> None:
    """One member's expiry makes no strangers unresolved: a late code is better."""
    code = submit_some(make_tenant(), 1, expires_at=timezone.now() + timedelta(hours=1))
    submit_some(make_tenant(), 20)
    _claimed(rig)
    Send.objects.filter(pk=code[0].id).update(expires_at=timezone.now() - timedelta(hours=20))
    rig.lapse_leases()
    rig.turn()
    assert statuses() == {"sent": 21}


def test_a_replay_renders_from_the_ledger_alone(rig: Rig) -> None:
    """`now` is the batch's stored time, and nothing this process remembers goes into the bytes."""
    submit_some(make_tenant(), 2, text="{{ 'now' | date: '%H:%M:%S' }} {{ code }}")
    rig.sandbox.fault("drop_after_accept", count=1)
    rig.turn()
    kept.clear()
    Batch.objects.update(created_at=timezone.now() - timedelta(hours=2))
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.sandbox.stats()["doubles"]) == ({"sent": 2}, 0)


def test_a_request_that_could_outlive_its_lease_is_not_started(rig: Rig) -> None:
    submit_some(make_tenant(), 2)
    line, _, bound = _claimed(rig)
    assert turn._call(line.adapter, bound, _now() - 20) is None
    assert rig.sandbox.stats()["requests_received"] == 0


def test_the_answer_is_recorded_when_redis_is_gone_meanwhile(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    submit_some(make_tenant(), 2)
    line, grant, bound = _claimed(rig)

    def gone(**_: Any) -> None:
        raise redis_module.ConnectionError("gone")

    monkeypatch.setattr(line.governor, "settle", gone)
    turn.request(line, grant, bound, _now())
    assert statuses() == {"sent": 2}


def test_a_flushed_redis_loses_nothing(rig: Rig) -> None:
    submit_some(make_tenant(), 250)
    rig.turn()
    rig.redis.flushdb()
    rig.drain()
    assert (statuses(), rig.sandbox.stats()["doubles"]) == ({"sent": 250}, 0)


def test_eight_threads_serve_a_rail_without_doubles_and_spend_what_they_request(rig: Rig) -> None:
    """A duplicate ticket, twenty of them: one send each."""
    tenants = [make_tenant() for _ in range(20)]
    for tenant in tenants:
        submit_many(tenant, [request(tenant, i) for i in range(60)])

    def serve() -> None:
        try:
            for _ in range(20):
                rig.turn()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=serve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.drain()
    assert statuses() == {"sent": 1200}
    stats = rig.sandbox.stats()
    assert (stats["emails_accepted"], stats["doubles"]) == (1200, 0)
    assert _spent_equals_requests(rig)


def test_content_is_stored_once_and_shared(rig: Rig) -> None:
    submit_some(make_tenant(), 50)
    assert Content.objects.count() == 1


def _adapter() -> Any:
    return adapter_for(Channel.EMAIL)


def _memory(rail: Rail = Rail.TRANSACTIONAL) -> Any:
    return memory_of("resend", Channel.EMAIL, rail)


def _now() -> float:
    return time.monotonic()


def _grant(rig: Rig, rail: Rail = Rail.TRANSACTIONAL) -> Grant:
    found = search(_adapter(), turn.governor_of("resend"), Channel.EMAIL, rail, _memory(rail))
    assert isinstance(found, Grant)
    return found


def _claimed(rig: Rig, rail: Rail = Rail.TRANSACTIONAL) -> tuple[turn.Line, Grant, Any]:
    """As far as a worker gets that dies right after its commit."""
    line = turn.Line(_adapter(), turn.governor_of("resend"), Channel.EMAIL, rail)
    grant = _grant(rig, rail)
    bound = prepare(line, grant)
    assert bound is not None
    return line, grant, bound
