"""Faults by their names. Each case is a test: here, or where `ELSEWHERE` says."""

from __future__ import annotations

import ast
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from core.models import DeadLetter
from messaging.channels.email import Template
from messaging.clock import run_once
from messaging.dispatch import outcomes, turn
from messaging.dispatch.reopening import take_over
from messaging.dispatch.scheduler import Grant, memory_of, search
from messaging.domain.lifecycle import BatchState
from messaging.domain.rails import Channel, Rail
from messaging.ledger import buckets
from messaging.ledger.contents import kept
from messaging.ledger.recover import Recovered
from messaging.models import Batch, RateLimitBucket, Send
from messaging.providers.registry import adapters
from tests.factories import make_tenant, statuses, submit_some
from tests.rig import Rig, prepare

TESTS = Path(__file__).parents[2]
OUTCOMES, TURN = "messaging/dispatch/test_outcomes.py", "messaging/dispatch/test_turn.py"
REFUSALS = "messaging/isolation/test_rejections.py"

ELSEWHERE = {
    "killed between commit and request": f"{TURN}::test_a_worker_that_vanished_after_its_commit_is_made_good",
    "killed between request and answer": "invariants/test_05_once.py::test_a_worker_killed_during_its_request_sends_once",
    "killed between answer and commit": f"{TURN}::test_a_worker_that_vanished_after_the_request_sends_nothing_twice",
    "lease runs out while the first worker still waits, acceptance": (
        f"{TURN}::test_a_fenced_out_worker_may_still_bring_an_acceptance"
    ),
    "lease runs out while the first worker still waits, anything else": (
        f"{TURN}::test_a_fenced_out_worker_changes_nothing_else"
    ),
    "a replay answered 429, 401 or refused after an unknown first try": (
        f"{OUTCOMES}::test_a_bound_batch_leaves_its_sends_bound_whatever_is_answered"
    ),
    "the client repeats a submit at the same moment": (
        "messaging/services/test_submit.py::test_eight_threads_with_one_key_are_one_send"
    ),
    "429 on the last attempt": (
        "invariants/test_03_nothing_dropped_on_429.py::test_429_on_the_last_attempt_is_not_the_last_attempt"
    ),
    "one bad item of a hundred": f"{OUTCOMES}::test_accepted_in_part_fails_the_named_ones_with_a_dead_letter_each",
    "403 for one tenant's domain in a mixed batch": (
        f"{REFUSALS}::test_a_refused_domain_is_found_among_many_and_the_others_go_on"
    ),
    "whole-batch 422 that is systemic": f"{REFUSALS}::test_what_refuses_three_tenants_opens_the_circuit_and_fails_nothing",
    "whole-batch 422 of one tenant's content": (
        f"{REFUSALS}::test_a_content_that_is_refused_for_everybody_holds_its_lane_and_fails_nothing"
    ),
    "whole-batch 422 with one culprit": (
        f"{REFUSALS}::test_one_culprit_of_a_hundred_is_found_wherever_it_is_and_the_others_are_sent"
    ),
    "409, the first request is in progress": (
        f"{OUTCOMES}::test_unknown_stays_bound_and_is_repeated_with_the_same_bytes_and_key"
    ),
    "409, the key was used with another payload": (
        f"{OUTCOMES}::test_a_key_used_with_another_payload_is_ambiguous_and_never_gets_a_new_key"
    ),
    "200 cut": f"{OUTCOMES}::test_unknown_stays_bound_and_is_repeated_with_the_same_bytes_and_key",
    "200 with too few ids": f"{OUTCOMES}::test_counts_that_differ_are_asked_for_once_more_then_ambiguous",
    "a member that expires while its batch is unknown": (
        f"{TURN}::test_a_bound_batch_is_repeated_however_long_ago_a_member_expired"
    ),
    "a template that fails for 1 of 100": f"{TURN}::test_a_template_that_fails_for_one_of_a_hundred_fails_that_one",
    "cancel racing with a 429": f"{TURN}::test_a_cancel_while_the_request_is_out_catches_what_comes_back",
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_the_case_is_a_test(case: str) -> None:
    path, name = ELSEWHERE[case].split("::")
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


# ------------------------------------------------------------------------------------------- two workers and one batch


def test_two_workers_and_one_batch_make_one_request(rig: Rig) -> None:
    """Both find it, both have a token for it: one takes it over, the other has nothing to send."""
    submit_some(make_tenant(), 3)
    rig.sandbox.fault("drop_after_accept", count=1)
    rig.turn()
    rig.lapse_leases()
    batch, start = rig.batch(), threading.Barrier(4)

    def take(_: int) -> object:
        try:
            start.wait(30)
            return take_over(batch.pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        taken = [found for found in pool.map(take, range(4)) if found is not None]
    assert [(type(found), found.fence) for found in taken if isinstance(found, Recovered)] == [(Recovered, 2)]
    assert len(taken) == 1


def test_two_workers_that_were_both_granted_one_replay_give_the_second_token_back(rig: Rig) -> None:
    submit_some(make_tenant(), 3)
    rig.sandbox.fault("drop_after_accept", count=1)
    rig.turn()
    rig.lapse_leases()
    line = turn.Line(adapters()[Channel.EMAIL], turn.governor_of("resend"), Channel.EMAIL, Rail.TRANSACTIONAL)
    memory = memory_of("resend", Channel.EMAIL, Rail.TRANSACTIONAL)
    grants = [search(line.adapter, line.governor, line.channel, line.rail, memory) for _ in range(2)]
    bound = []
    for grant in grants:
        assert isinstance(grant, Grant)
        assert grant.replay
        bound.append(prepare(line, grant))
    assert [b is None for b in bound] == [False, True]
    assert isinstance(grants[0], Grant)
    assert bound[0] is not None
    turn.request(line, grants[0], bound[0], time.monotonic())
    assert (statuses(), rig.sandbox.stats()["doubles"]) == ({"sent": 3}, 0)
    assert rig.governor.spent() == rig.sandbox.stats()["requests_received"] == 2


# --------------------------------------------------------------------------------------------------------------- quota


def test_daily_quota_exceeded_waits_uncounted_and_begins_with_login_codes_again(rig: Rig) -> None:
    tenant = make_tenant()
    submit_some(tenant, 250, category="marketing")
    rig.sandbox.fault("429", count=1, name="daily_quota_exceeded", retry_after=3600)
    rig.turn(Rail.MARKETING)
    submit_some(tenant, 1)
    assert rig.turn() is None, "nobody is sent for until the reset"
    assert rig.turn(Rail.MARKETING) is None
    state = rig.redis.hgetall(rig.governor.keys[0])
    assert state[b"blocked_why"] == b"quota"
    assert (statuses(), set(Send.objects.values_list("attempts", flat=True))) == ({"queued": 251}, {0})
    rig.unblock()
    assert rig.turn(Rail.MARKETING) is None, "the first token is the code's"
    rig.turn()
    assert statuses(category="transactional") == {"sent": 1}
    rig.drain(Rail.MARKETING)
    assert (statuses(), DeadLetter.objects.count()) == ({"sent": 251}, 0)


def test_our_own_count_of_the_quota_keeps_its_reserve_for_login_codes_and_is_never_exceeded(rig: Rig) -> None:
    RateLimitBucket.objects.create(
        provider="resend", scope="global", unit="send", capacity=100, refill_per_second=1e-6, reserve=40
    )
    buckets.forget()
    tenant = make_tenant()
    submit_some(tenant, 250, category="marketing")
    rig.drain(Rail.MARKETING)
    assert statuses() == {"sent": 60, "queued": 190}
    submit_some(tenant, 50)
    rig.drain()
    assert statuses(category="transactional") == {"sent": 40, "queued": 10}
    assert set(Send.objects.filter(status="queued").values_list("attempts", flat=True)) == {0}
    # The quota comes back: codes first, though marketing asks first.
    rig.redis.hset(rig.governor.keys[0], "q_tokens", "100")
    assert rig.turn(Rail.MARKETING) is None
    rig.turn()
    assert statuses(category="transactional") == {"sent": 50}
    rig.drain(Rail.MARKETING)
    assert statuses() == {"sent": 160, "queued": 140}, "all but the reserve"


# -------------------------------------------------------------------------------------------------------------- clocks


def _clock_off_by(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """From now on this host's clock is wrong; the database's and Redis' are not."""
    monkeypatch.undo()
    real_time, real_now = time.time, timezone.now
    monkeypatch.setattr(time, "time", lambda: real_time() + seconds)
    monkeypatch.setattr(timezone, "now", lambda: real_now() + timedelta(seconds=seconds))


@pytest.mark.parametrize(("first", "second"), [(5.0, -5.0), (-5.0, 5.0)])
def test_hosts_whose_clocks_differ_by_ten_seconds_repeat_the_same_bytes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, first: float, second: float
) -> None:
    submit_some(make_tenant(), 3, text="{{ 'now' | date: '%H:%M:%S' }} {{ code }}")
    rig.sandbox.fault("drop_after_accept", count=1)
    _clock_off_by(monkeypatch, first)
    rig.turn()
    kept.clear()
    _clock_off_by(monkeypatch, second)
    assert rig.turn() is None, "the lease is the database's time"
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.sandbox.stats()["doubles"]) == ({"sent": 3}, 0)


@pytest.mark.parametrize("seconds", [5.0, -5.0])
def test_what_is_due_or_expired_is_so_by_the_database_s_clock(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    now = timezone.now()
    early, expired = submit_some(make_tenant(), 2, expires_at=now + timedelta(hours=1))
    Send.objects.filter(pk=early.id).update(status="scheduled", not_before=now + timedelta(seconds=3))
    Send.objects.filter(pk=expired.id).update(expires_at=now - timedelta(seconds=3))
    _clock_off_by(monkeypatch, seconds)
    run_once(1)
    rig.drain()
    assert {s.pk: s.status for s in Send.objects.all()} == {early.id: "scheduled", expired.id: "expired"}


# -------------------------------------------------------------------------------------------------------------- deploy


def test_a_deploy_that_changes_rendering_while_a_batch_is_unknown_sends_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new code renders other words: the same key must not go out with them, and no new key either."""
    submit_some(make_tenant(), 3)
    rig.sandbox.fault("drop_before", count=1)
    rig.turn()
    received = rig.sandbox.stats()["requests_received"]
    real = Template.render
    monkeypatch.setattr(
        Template, "render", lambda self, variables, now: real(self, variables | {"code": "changed"}, now)
    )
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.batch().state) == ({"ambiguous": 3}, BatchState.AMBIGUOUS)
    assert set(Send.objects.values_list("error_code", flat=True)) == {"digest_differs"}
    assert rig.sandbox.stats()["requests_received"] == received
    assert DeadLetter.objects.count() == 0
    assert Batch.objects.count() == 1


def test_attempts_of_a_send_are_bounded_only_where_the_provider_is_in_use(rig: Rig) -> None:
    """What waits for the circuit never runs out of attempts: an outage of an hour fails nobody."""
    submit_some(make_tenant(), 3)
    adapters()[Channel.EMAIL] = type(adapters()[Channel.EMAIL])(api_key="re_sandbox", base_url="http://127.0.0.1:1")
    rig.redis.hset(rig.governor.keys[0], mapping={"circuit": "unreachable", "opened": "1"})
    for _ in range(3 * outcomes.MAX_ATTEMPTS):
        rig.unblock()
        rig.turn()
        Send.objects.filter(status="scheduled").update(status="queued")
    assert (statuses(), set(Send.objects.values_list("attempts", flat=True))) == ({"queued": 3}, {0})
