"""A request refused as a whole: the culprit is found, in its lane or by its sender domain, and everybody else goes on."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from core.models import DeadLetter, Tenant
from core.security.ids import new_id
from messaging.clock import run_once
from messaging.dispatch import turn
from messaging.dispatch.recording import Recorded
from messaging.dispatch.scheduler import Grant, Wait, memory_of, search
from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel, Rail
from messaging.isolation import partition, rejections
from messaging.ledger import lanes, sender_holds
from messaging.ledger.batch import Bound
from messaging.ledger.claim import BoundSend
from messaging.ledger.record import Failure
from messaging.models import Blast, Send, SenderDomain, SenderHold, TenantLane
from messaging.providers.registry import adapters
from messaging.services.submit import submit_many
from tests.factories import hint_due, make_content, make_tenant, request, statuses, submit_some
from tests.rig import Rig, prepare

MARKETING = Rail.MARKETING


def _blast(tenant: Tenant, requests: list[dict[str, Any]]) -> Blast:
    """A running blast of these sends, each with a content of its own."""
    sends = submit_many(tenant, [r | {"category": "marketing"} for r in requests])
    blast = Blast.objects.create(
        tenant=tenant,
        content_id=make_content(tenant),
        channel="email",
        category="marketing",
        rail="marketing",
        priority=2,
        state="running",
    )
    hint_due(blast)
    Send.objects.filter(pk__in=[s.id for s in sends]).update(blast=blast)
    return blast


def _end_holds() -> None:
    """As if all holds, of lanes, blasts and senders, ended now."""
    for model in (TenantLane, Blast, SenderHold):
        model.objects.exclude(hold_code="").update(held_until=timezone.now())
    Send.objects.filter(status="scheduled").update(status="queued", held_by=None)
    sender_holds.forget()


def _settle(rig: Rig, rail: Rail = Rail.TRANSACTIONAL, rounds: int = 8) -> None:
    """Until nothing more happens but in the next hold."""
    for _ in range(rounds):
        rig.drain(rail)
        _end_holds()
    rig.drain(rail)


def _requests(rig: Rig) -> int:
    return int(rig.sandbox.stats()["requests_received"])


# ------------------------------------------------------------------------------------------------------- one culprit


@pytest.mark.parametrize("place", [0, 1, 37, 98, 99])
def test_one_culprit_of_a_hundred_is_found_wherever_it_is_and_the_others_are_sent(rig: Rig, place: int) -> None:
    tenant = make_tenant("a")
    requests = [request(tenant, i) for i in range(100)]
    requests[place] |= {"subject": "POISON"}
    culprit = submit_many(tenant, requests)[place]
    rig.sandbox.fault("422", contains="POISON")
    rig.drain()
    assert _requests(rig) <= 2 * math.ceil(math.log2(100)) + 6
    # The last one of its lane has no witness in it: others must have been accepted since.
    submit_some(make_tenant("b"), 1)
    _settle(rig, rounds=1)
    assert statuses(tenant=tenant) == {"sent": 99, "failed": 1}
    letter = DeadLetter.objects.get()
    assert (letter.send_id, letter.reason) == (culprit.id, "validation_error")
    assert rig.governor.spent() == _requests(rig), "every request of the search took its token"
    # One more batch of its own, and the lane is like any other.
    submit_some(tenant, 1)
    rig.drain()
    assert not TenantLane.objects.filter(tenant=tenant).exists()


def test_a_culprit_in_a_blast_is_found_behind_the_oldest_of_its_lane(rig: Rig) -> None:
    tenant, other = make_tenant("a"), make_tenant("b")
    blast = _blast(tenant, [request(tenant, i) | ({"text": "POISON"} if i == 33 else {}) for i in range(60)])
    submit_some(other, 40, category="marketing")
    rig.sandbox.fault("422", contains="POISON")
    rig.drain(MARKETING)
    assert statuses(blast=blast) == {"sent": 59, "failed": 1}
    assert statuses(tenant=other) == {"sent": 40}
    blast.refresh_from_db()
    assert (blast.suspects, blast.convicting, blast.hold_code) == (0, False, "")


def test_several_culprits_are_each_found_and_nobody_else_fails(rig: Rig) -> None:
    tenant = make_tenant("a")
    requests = [request(tenant, i) | ({"subject": "POISON"} if i in (0, 1, 50, 99) else {}) for i in range(100)]
    culprits = {submit.id for i, submit in enumerate(submit_many(tenant, requests)) if i in (0, 1, 50, 99)}
    rig.sandbox.fault("422", contains="POISON")
    _settle(rig)
    assert statuses() == {"sent": 96, "failed": 4}
    assert set(DeadLetter.objects.values_list("send_id", flat=True)) == culprits


def test_a_culprit_that_is_the_only_one_of_its_lane_fails_once_others_were_accepted_between(rig: Rig) -> None:
    lonely, other = make_tenant("lonely"), make_tenant("other")
    culprit = submit_some(lonely, 1, subject="POISON")[0]
    rig.sandbox.fault("422", contains="POISON")
    _settle(rig, rounds=3)
    assert statuses() == {"queued": 1}, "nothing else was accepted: it may be the provider"
    submit_some(other, 1)
    _settle(rig, rounds=2)
    assert statuses(tenant=lonely) == {"failed": 1}
    assert DeadLetter.objects.get().send_id == culprit.id


# ------------------------------------------------------------------------------------------------- a tenant's content


def test_a_content_that_is_refused_for_everybody_holds_its_lane_and_fails_nothing(rig: Rig) -> None:
    tenant, other = make_tenant("a"), make_tenant("b")
    blast = _blast(tenant, [request(tenant, i, subject="POISON") for i in range(150)])
    submit_some(other, 50, category="marketing")
    rig.sandbox.fault("422", contains="POISON")
    rig.drain(MARKETING)
    blast.refresh_from_db()
    assert (statuses(tenant=other), statuses(blast=blast)) == ({"sent": 50}, {"queued": 150})
    assert (blast.hold_code, blast.hold_seconds) == ("validation_error", 10)
    searched = _requests(rig)
    assert searched <= 14
    seconds = []
    for _ in range(8):
        _end_holds()
        submit_some(other, 1, category="marketing")  # others are accepted all the time
        rig.drain(MARKETING)
        blast.refresh_from_db()
        seconds.append(blast.hold_seconds)
    assert seconds == [20, 40, 80, 160, 320, 600, 600, 600]
    assert _requests(rig) == searched + 16, "one request a hold, besides the others'"
    assert (DeadLetter.objects.count(), rig.circuit()) == (0, "")


def test_a_lane_goes_on_as_soon_as_its_content_is_accepted(rig: Rig) -> None:
    tenant = make_tenant("a")
    blast = _blast(tenant, [request(tenant, i, subject="POISON") for i in range(150)])
    rig.sandbox.fault("422", contains="POISON")
    rig.drain(MARKETING)
    rig.sandbox.clear_faults()
    _end_holds()
    rig.drain(MARKETING)
    blast.refresh_from_db()
    assert (statuses(), blast.isolated, blast.hold_code) == ({"sent": 150}, False, "")


def _together(
    rig: Rig, count: int, rail: Rail = MARKETING, before: Callable[[], object] = lambda: None
) -> list[Callable[[], Recorded]]:
    """So many batches, granted and claimed at the same time, `before` before each. Called, each makes its request."""
    line = turn.Line(adapters()[Channel.EMAIL], rig.governor, Channel.EMAIL, rail)
    requests: list[Callable[[], Recorded]] = []
    for _ in range(count):
        before()
        grant = search(line.adapter, line.governor, line.channel, line.rail, line.memory)
        assert isinstance(grant, Grant)
        bound = prepare(line, grant)
        assert bound is not None
        requests.append(partial(turn.request, line, grant, bound, time.monotonic()))
    return requests


def test_trials_that_are_under_way_at_the_same_time_lengthen_a_hold_once(rig: Rig) -> None:
    tenant = make_tenant("a")
    blast = _blast(tenant, [request(tenant, i, subject="POISON") for i in range(20)])
    rig.sandbox.fault("422", contains="POISON")
    rig.drain(MARKETING)
    _end_holds()
    for ask in _together(rig, 3):
        ask()
    blast.refresh_from_db()
    assert (blast.hold_seconds, statuses()) == (20, {"queued": 20})


def test_a_trial_that_is_refused_as_another_is_accepted_convicts_nobody(rig: Rig) -> None:
    """It was refused once, perhaps before the provider was in order again."""
    tenant = make_tenant("a")
    blast = _blast(tenant, [request(tenant, i, subject="POISON") for i in range(20)])
    rig.sandbox.fault("422", contains="POISON")
    rig.drain(MARKETING)
    _end_holds()
    first, second = _together(rig, 2)
    rig.sandbox.clear_faults()
    first()
    rig.sandbox.fault("422", contains="POISON")
    second()
    blast.refresh_from_db()
    assert (statuses(), blast.convicting) == ({"queued": 19, "sent": 1}, True)
    rig.sandbox.clear_faults()
    rig.drain(MARKETING)
    assert statuses() == {"sent": 20}


def test_a_lane_that_was_held_for_its_domain_convicts_nobody_at_the_first_refusal(rig: Rig) -> None:
    tenant = make_tenant("a")
    _blast(tenant, [request(tenant, i) for i in range(3)])
    submit_some(other := make_tenant("b"), 1, category="marketing")
    rig.sandbox.fault("403_domain", domain="a.org")
    rig.drain(MARKETING)
    rig.sandbox.clear_faults()
    _end_holds()
    recorded = rig.turn(MARKETING)
    assert recorded is not None
    assert len(recorded.accepted) == 1, "the trial"
    rig.sandbox.fault("422", count=1)
    rig.drain(MARKETING)
    assert (statuses(tenant=tenant), statuses(tenant=other)) == ({"sent": 3}, {"sent": 1})


def test_halves_that_are_under_way_at_the_same_time_do_not_hide_the_culprit(rig: Rig) -> None:
    """The acceptance of what was never suspected must not end the search: the lane would be mixed with strangers again."""
    tenant = make_tenant("a")
    blast = _blast(tenant, [request(tenant, i) | ({"text": "POISON"} if i == 7 else {}) for i in range(300)])
    rig.sandbox.fault("422", contains="POISON")
    rig.turn(MARKETING)
    culprit, *others = _together(rig, 3)
    culprit()
    for other in others:
        other()
    blast.refresh_from_db()
    assert (blast.isolated, blast.suspects) == (True, 50)
    rig.drain(MARKETING)
    assert statuses() == {"sent": 299, "failed": 1}


# --------------------------------------------------------------------------------------------------- lanes and lanes


def test_innocent_lanes_leave_by_halves_and_not_one_by_one(rig: Rig) -> None:
    """A hundred tenants in one refused request: nobody waits for ninety-nine others to go alone."""
    tenants = [make_tenant() for _ in range(100)]
    for i, tenant in enumerate(tenants):
        submit_some(tenant, 1, subject="POISON" if i == 61 else "Your code")
    rig.sandbox.fault("422", contains="POISON")
    rig.drain()
    assert statuses(tenant=tenants[61]) in ({"queued": 1}, {"failed": 1})
    assert Send.objects.filter(status="sent").count() == 99
    assert _requests(rig) <= 1 + 2 * 7 + 2
    assert list(TenantLane.objects.filter(isolated=True).values_list("tenant", flat=True)) == [tenants[61].pk]


def test_lanes_that_are_halved_are_locked_in_one_order(rig: Rig) -> None:
    """Who waits for the first of several blasts holds none of the others: nobody can be waiting for him."""
    a, b = make_tenant("a"), make_tenant("b")
    first = _blast(b, [request(b)])  # the smaller id, in the second half
    second = _blast(a, [request(a)])
    sends = tuple(
        BoundSend(new_id(), blast.tenant_id, blast.pk, blast.content_id, 2, b"", None, 0) for blast in (second, first)
    )
    bound = Bound(new_id(), 1, 1, b"", "", sends, replay=False)

    def sort() -> None:
        with transaction.atomic():
            rejections.isolate_rejected_lanes(
                adapters()[Channel.EMAIL], MARKETING, bound, Failure("refused"), trial=False
            )
        connection.close()

    worker = threading.Thread(target=sort)
    with transaction.atomic():
        Blast.objects.select_for_update().get(pk=first.pk)
        worker.start()
        with connection.cursor() as cursor:
            waits = False
            while not waits:
                assert worker.is_alive()
                cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
                waits = cursor.fetchone()[0]
        Blast.objects.select_for_update(nowait=True).get(pk=second.pk)
    worker.join()
    assert set(Blast.objects.values_list("isolated", flat=True)) == {True}


def test_others_have_every_second_request_while_a_lane_is_searched(rig: Rig) -> None:
    tenant, other = make_tenant("a"), make_tenant("b")
    submit_some(tenant, 99)
    submit_some(tenant, 1, subject="POISON")
    rig.sandbox.fault("422", contains="POISON")
    rig.turn()
    for n in range(1, 9):
        submit_some(other, 1)
        rig.turn()
        rig.turn()
        assert statuses(tenant=other) == {"sent": n}


def test_a_search_that_has_used_up_the_retry_budget_waits_and_the_others_go_on(rig: Rig) -> None:
    tenant, other = make_tenant("a"), make_tenant("b")
    submit_some(tenant, 99)
    submit_some(tenant, 1, subject="POISON")
    rig.sandbox.fault("422", contains="POISON")
    rig.turn()
    rig.redis.hset(rig.governor.keys[0], mapping={"r_tokens": "-1000000", "r_at": str(rig.redis.time()[0])})
    submit_some(other, 5)
    rig.turn()
    assert statuses(tenant=other) == {"sent": 5}
    assert rig.turn() is None
    assert (statuses(tenant=tenant), set(Send.objects.filter(tenant=tenant).values_list("attempts", flat=True))) == (
        {"queued": 100},
        {0},
    )


def test_who_waits_for_the_retry_budget_is_woken_by_new_work(rig: Rig) -> None:
    """A code that comes meanwhile waits for nothing but its token."""
    submit_some(make_tenant("a"), 3)
    rig.sandbox.fault("500", count=1)
    rig.turn()
    rig.lapse_leases()
    rig.redis.hset(rig.governor.keys[0], mapping={"r_tokens": "-1000000", "r_at": str(rig.redis.time()[0])})
    memory = memory_of("resend", Channel.EMAIL, Rail.TRANSACTIONAL)
    found = search(adapters()[Channel.EMAIL], rig.governor, Channel.EMAIL, Rail.TRANSACTIONAL, memory)
    assert isinstance(found, Wait)
    assert (found.reason, found.new_work_helps) == ("retries", True)


# ------------------------------------------------------------------------------------------------------------ systemic


def test_what_refuses_three_tenants_opens_the_circuit_and_fails_nothing(rig: Rig) -> None:
    tenants = [make_tenant() for _ in range(20)]
    for tenant in tenants:
        submit_some(tenant, 2)
    rig.sandbox.fault("422")
    for _ in range(40):
        rig.turn()
    assert rig.circuit() == "refusing"
    assert _requests(rig) <= 1 + 2 * 20 + 3
    before, known = _requests(rig), list(TenantLane.objects.order_by("id").values())
    for _ in range(12):
        rig.unblock()
        rig.turn()
    assert _requests(rig) == before + 12, "one probe at a time"
    assert list(TenantLane.objects.order_by("id").values()) == known, "nobody's content is suspected for it"
    assert (statuses(), DeadLetter.objects.count()) == ({"queued": 40}, 0)
    assert set(Send.objects.values_list("attempts", flat=True)) == {0}
    rig.sandbox.clear_faults()
    rig.unblock()
    _settle(rig)
    assert (statuses(), rig.circuit()) == ({"sent": 40}, "")


def test_a_circuit_that_contents_have_opened_closes_for_the_first_tenant_that_has_others(rig: Rig) -> None:
    """A probe is for one tenant: refused together with those who opened it, a stranger's codes would wait for ever."""
    rig.sandbox.fault("422", contains="POISON")
    for _ in range(3):
        submit_some(make_tenant(), 2, subject="POISON")
        rig.drain()
    assert rig.circuit() == "refusing"
    submit_some(other := make_tenant("other"), 1)
    for _ in range(4):
        rig.unblock()
        rig.turn()
    assert (statuses(tenant=other), rig.circuit()) == ({"sent": 1}, "")
    assert rig.governor.spent() == _requests(rig)


def test_only_contents_of_one_tenant_that_nobody_suspected_are_evidence(rig: Rig) -> None:
    """Three tenants with contents that are known to be refused, tried again in a row, prove nothing; nor does a mixed batch."""
    tenants = [make_tenant() for _ in range(3)]
    for tenant in tenants:
        submit_some(tenant, 1, subject="POISON")
    rig.sandbox.fault("422", contains="POISON")
    rig.turn()
    assert not rig.redis.hget(rig.governor.keys[0], "refused_t"), "mixed: it may be anyone's"
    for tenant in tenants:
        lanes.hold(Channel.EMAIL, Rail.TRANSACTIONAL, LaneKey(tenant.pk, None, 0), Failure("refused"), 0)
    for _ in range(3):
        rig.turn()
    assert (rig.circuit(), rig.sandbox.stats()["requests_received"]) == ("", 4)
    assert not rig.redis.hget(rig.governor.keys[0], "refused_t")


def test_marketing_contents_that_are_refused_never_stop_a_login_code(rig: Rig) -> None:
    rig.sandbox.fault("422", contains="POISON")
    for _ in range(3):
        submit_some(make_tenant(), 5, category="marketing", subject="POISON")
    for _ in range(12):
        rig.turn(MARKETING)
    assert rig.circuit() == "refusing"
    submit_some(make_tenant(), 1)
    recorded = rig.turn()
    assert recorded is not None
    assert len(recorded.accepted) == 1


# ------------------------------------------------------------------------------------------------------ sender domains


def test_a_refused_domain_is_found_among_many_and_the_others_go_on(rig: Rig) -> None:
    tenants = [make_tenant(f"t{i}") for i in range(60)]
    for tenant in tenants:
        submit_some(tenant, 1)
    rig.sandbox.fault("403_domain", domain="t17.org")
    rig.drain()
    assert statuses(tenant=tenants[17]) == {"scheduled": 1}
    assert statuses() == {"scheduled": 1, "sent": 59}
    assert _requests(rig) <= 1 + 2 * 6 + 2
    hold = SenderHold.objects.get()
    assert (hold.domain, hold.hold_code, hold.hold_seconds) == ("t17.org", "validation_error", 10)
    assert (rig.circuit(), DeadLetter.objects.count()) == ("", 0)
    assert Send.objects.get(status="scheduled").attempts == 0


def test_the_same_tenant_s_sends_of_another_domain_go_on_in_the_same_lane(rig: Rig) -> None:
    tenant = make_tenant("a")
    SenderDomain.objects.create(tenant=tenant, domain="verified.org")
    submit_some(tenant, 30)
    rig.sandbox.fault("403_domain", domain="a.org")
    rig.drain()
    for _ in range(3):
        submit_some(tenant, 2, from_="codes@verified.org")
        submit_some(tenant, 2)
        rig.drain()
    assert statuses() == {"sent": 6, "scheduled": 36}
    assert _requests(rig) <= 1 + 3 * 3


def test_all_lanes_of_a_refused_domain_wait_for_one_send_that_tries_again(rig: Rig) -> None:
    """Two blasts and single sends of a domain, and of another tenant that shares it: one request a hold."""
    tenant, twin, other = make_tenant("a"), make_tenant("twin"), make_tenant("b")
    SenderDomain.objects.create(tenant=twin, domain="a.org")
    blasts = [_blast(tenant, [request(tenant, i) for i in range(5)]) for _ in range(2)]
    submit_some(tenant, 5, category="marketing")
    submit_some(twin, 5, category="marketing", from_="x@a.org")
    rig.sandbox.fault("403_domain", domain="a.org")
    rig.drain(MARKETING)
    first = _requests(rig)
    assert first <= 2
    for n in range(1, 5):
        _end_holds()
        submit_some(other, 3, category="marketing")
        rig.drain(MARKETING)
        assert _requests(rig) == first + 2 * n, "one send of the domain, and the others' batch"
    assert statuses(tenant=other) == {"sent": 12}
    assert SenderHold.objects.get().hold_seconds == 160
    rig.sandbox.clear_faults()
    _settle(rig, MARKETING)
    assert (set(statuses()), SenderHold.objects.count()) == ({"sent"}, 0)
    assert not Blast.objects.exclude(hold_code="").exists()
    assert [Blast.objects.get(pk=b.pk).isolated for b in blasts] == [False, False]


def test_the_send_that_tries_a_domain_again_takes_nobody_with_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition.random, "random", lambda: 0.0)  # its turn at once
    tenant, other = make_tenant("a"), make_tenant("b")
    submit_some(tenant, 3)
    rig.sandbox.fault("403_domain", domain="a.org")
    rig.drain()
    _end_holds()
    submit_some(other, 3)
    rig.turn()
    assert len(rig.batches()[-1].send_ids) == 1
    rig.drain()
    assert statuses(tenant=other) == {"sent": 3}


def test_a_hold_is_tried_once_by_whoever_comes_first(rig: Rig) -> None:
    make_tenant("a")
    SenderHold.objects.create(
        channel="email", domain="a.org", hold_code="x", hold_seconds=10, held_until=timezone.now()
    )
    assert [sender_holds.may_try(Channel.EMAIL, "a.org") for _ in range(3)] == [True, False, False]


def test_holds_of_a_domain_begin_short_and_double(rig: Rig) -> None:
    submit_some(make_tenant("refused"), 2)
    rig.sandbox.fault("403_domain", domain="refused.org")
    lengths = []
    for _ in range(8):
        rig.drain()
        lengths.append(SenderHold.objects.get().hold_seconds)
        _end_holds()
    assert lengths == [10, 20, 40, 80, 160, 320, 600, 600]


def test_refusals_that_were_under_way_when_a_hold_began_do_not_lengthen_it(rig: Rig) -> None:
    tenant = make_tenant("a")
    rig.sandbox.fault("403_domain", domain="a.org")
    for ask in _together(rig, 6, Rail.TRANSACTIONAL, before=lambda: submit_some(tenant, 1)):
        ask()
    assert SenderHold.objects.get().hold_seconds == 10
    assert statuses() == {"scheduled": 6}


def test_only_its_trial_lengthens_a_hold(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not heard of the hold yet sends for the domain once more."""
    tenant = make_tenant("a")
    rig.sandbox.fault("403_domain", domain="a.org")
    submit_some(tenant, 1)
    rig.turn()
    with monkeypatch.context() as unheard:
        unheard.setattr(sender_holds, "watched", lambda channel: {})
        submit_some(tenant, 1)
        rig.turn()
    assert (_requests(rig), SenderHold.objects.get().hold_seconds) == (2, 10)
    _end_holds()
    rig.turn()
    assert (_requests(rig), SenderHold.objects.get().hold_seconds) == (3, 20)


@pytest.mark.parametrize("held_for", [10, 600])
def test_single_sends_of_a_domain_that_is_accepted_again_are_due_with_the_next_beat(rig: Rig, held_for: int) -> None:
    tenant = make_tenant("a")
    rig.sandbox.fault("403_domain", domain="a.org")
    submit_some(tenant, 250)
    rig.drain()
    SenderHold.objects.update(hold_seconds=held_for)
    submit_some(tenant, 1)
    rig.drain()
    assert (statuses(), run_once().moved["wake_held"]) == ({"scheduled": 251}, 0)
    rig.sandbox.clear_faults()
    SenderHold.objects.update(held_until=timezone.now())
    assert run_once().moved["wake_held"] == 1, "the trial; the others are not moved to and fro for it"
    sender_holds.forget()
    assert len(rig.drain()) == 1
    assert (statuses(), SenderHold.objects.count()) == ({"sent": 1, "scheduled": 250}, 0)
    assert run_once().moved["wake_held"] == 250
    rig.drain()
    assert statuses() == {"sent": 251}
    assert _requests(rig) == 1 + 1 + 3


def test_a_trial_that_nobody_claims_does_not_keep_the_others_waiting(rig: Rig) -> None:
    """The oldest send of the domain is another tenant's, who is inactive meanwhile."""
    gone, tenant = make_tenant("gone"), make_tenant("a")
    SenderDomain.objects.create(tenant=gone, domain="a.org")
    rig.sandbox.fault("403_domain", domain="a.org")
    submit_some(gone, 1, from_="x@a.org")
    submit_some(tenant, 3)
    rig.drain()
    Tenant.objects.filter(pk=gone.pk).update(active=False)
    rig.sandbox.clear_faults()
    SenderHold.objects.update(held_until=timezone.now())
    for _ in range(3):
        run_once()
        sender_holds.forget()
        rig.drain()
    assert (statuses(tenant=tenant), statuses(tenant=gone)) == ({"sent": 3}, {"queued": 1})


# ----------------------------------------------------------------------------------------------- an account that is refused


@pytest.mark.parametrize("rail", list(Rail))
def test_an_account_that_is_refused_is_found_out_in_four_requests_and_leaves_no_trace(rig: Rig, rail: Rail) -> None:
    """Forty tenants with a domain each: all of them, and three times a third of them."""
    category = "marketing" if rail is MARKETING else "transactional"
    tenants = [make_tenant() for _ in range(40)]
    for tenant in tenants:
        submit_some(tenant, 1, category=category)
    rig.sandbox.fault("403_account")
    while not rig.circuit():
        assert rig.turn(rail) is not None
    assert (rig.circuit(), _requests(rig), SenderHold.objects.exclude(hold_code="").count()) == ("refusing", 4, 0)
    for _ in range(12):
        rig.unblock()
        rig.turn(rail)
    assert _requests(rig) == 4 + 12, "one probe at a time"
    assert (statuses(), SenderHold.objects.exclude(hold_code="").count()) == ({"queued": 40}, 0)
    assert not TenantLane.objects.exclude(hold_code="").exists()
    rig.sandbox.clear_faults()
    rig.unblock()
    rig.drain(rail)
    assert (statuses(), rig.circuit(), SenderHold.objects.count()) == ({"sent": 40}, "", 0)
    for tenant in tenants:
        submit_some(tenant, 1, category=category)
    before = _requests(rig)
    rig.drain(rail)
    assert (statuses(), _requests(rig)) == ({"sent": 80}, before + 1)
    assert rig.governor.spent() == _requests(rig)
    assert (DeadLetter.objects.count(), set(Send.objects.values_list("attempts", flat=True))) == (0, {1})


def test_what_was_held_before_an_account_was_found_to_be_refused_is_tried_as_soon_as_it_is_over(rig: Rig) -> None:
    """One code after the other: two domains are held when the third opens the circuit; those under way are not held any more."""
    tenants = [make_tenant() for _ in range(40)]
    rig.sandbox.fault("403_account")
    for tenant in tenants[:2]:
        submit_some(tenant, 2)
        rig.turn()
    rest = iter(tenants[2:6])
    for ask in _together(rig, 4, Rail.TRANSACTIONAL, before=lambda: submit_some(next(rest), 2)):
        ask()
    assert (rig.circuit(), _requests(rig)) == ("refusing", 6)
    assert (statuses(), SenderHold.objects.count()) == ({"scheduled": 4, "queued": 8}, 2)
    SenderHold.objects.update(hold_seconds=600, held_until=timezone.now() + timedelta(seconds=600))
    for tenant in tenants:
        submit_some(tenant, 1)
    rig.sandbox.clear_faults()
    while rig.circuit():  # a probe may meet nothing but sends of a domain that is held
        rig.unblock()
        rig.turn()
    rig.drain()
    run_once()
    sender_holds.forget()
    rig.drain()
    assert SenderHold.objects.count() == 0, "each has had its trial"
    run_once()
    rig.drain()
    assert (statuses(), TenantLane.objects.exclude(hold_code="").count()) == ({"sent": 52}, 0)
    assert _requests(rig) <= 6 + 1 + 2 + 3, "a probe, a trial for each of the two, the rest, and what was set aside"


def test_blasts_that_were_held_for_their_domain_are_tried_too(rig: Rig) -> None:
    tenants = [make_tenant() for _ in range(4)]
    rig.sandbox.fault("403_account")
    for tenant in tenants[:3]:
        _blast(tenant, [request(tenant, i) for i in range(3)])
        rig.turn(MARKETING)
    assert (rig.circuit(), Blast.objects.exclude(hold_code="").count()) == ("refusing", 2)
    rig.sandbox.clear_faults()
    rig.unblock()
    rig.drain(MARKETING)
    assert (statuses(), Blast.objects.exclude(hold_code="").count()) == ({"sent": 9}, 0)


def test_domains_that_are_refused_for_themselves_open_the_circuit_once(rig: Rig) -> None:
    """Three that are not verified, and nobody else has anything to send: the first one who has closes it. Then they are tried
    each on its own, which is no evidence: they are known."""
    bad = [make_tenant(f"bad-{i}") for i in range(3)]
    for tenant in bad:
        rig.sandbox.fault("403_domain", domain=f"{tenant.slug}.org")
        submit_some(tenant, 5)
        rig.turn()
    assert rig.circuit() == "refusing"
    submit_some(other := make_tenant("other"), 1)
    for _ in range(4):
        rig.unblock()
        rig.turn()
    assert (statuses(tenant=other), rig.circuit()) == ({"sent": 1}, "")
    rig.drain()
    assert (rig.circuit(), set(statuses())) == ("", {"sent", "scheduled"})
    assert SenderHold.objects.exclude(hold_code="").count() == 3
    for _ in range(3):
        _end_holds()
        rig.drain()
        assert rig.circuit() == ""
    assert _requests(rig) <= 3 + 4 + 3 * 4 + 4


def test_while_the_circuit_is_open_a_domain_that_is_in_order_is_not_refused_with_another_for_ever(rig: Rig) -> None:
    """The only tenant that has anything to send sends for both of them."""
    for i in range(3):
        submit_some(make_tenant(f"bad-{i}"), 1)
        rig.sandbox.fault("403_domain", domain=f"bad-{i}.org")
        rig.turn()
    assert rig.circuit() == "refusing"
    Send.objects.all().delete()
    tenant = make_tenant("a")
    SenderDomain.objects.create(tenant=tenant, domain="bad-0.org")
    submit_some(tenant, 3, from_="x@bad-0.org")
    submit_some(tenant, 3)
    SenderHold.objects.all().delete()
    for _ in range(60):
        rig.unblock()
        rig.turn()
        if not rig.circuit():
            break
    assert (rig.circuit(), Send.objects.filter(status="sent").count()) == ("", 3)


def test_a_refused_domain_does_not_keep_a_circuit_open_that_was_unreachable(rig: Rig) -> None:
    """It proves nothing; it is held as ever, and the next probe is another's."""
    tenant = make_tenant("a")
    SenderDomain.objects.create(tenant=tenant, domain="verified.org")
    rig.sandbox.fault("500", count=3)
    for n in range(3):
        submit_some(make_tenant(f"other{n}"), 1)
        rig.turn()
    assert rig.circuit() == "unreachable"
    rig.sandbox.fault("403_domain", domain="a.org")
    submit_some(tenant, 150)
    submit_some(tenant, 1, from_="codes@verified.org")
    rig.unblock()
    rig.turn()
    assert (rig.circuit(), SenderHold.objects.get().hold_seconds) == ("unreachable", 10)
    for _ in range(4):
        rig.unblock()
        rig.turn()
    assert (rig.circuit(), statuses()) == ("", {"sending": 3, "scheduled": 150, "sent": 1})


def test_codes_that_are_accepted_do_not_hide_that_marketing_is_refused(rig: Rig) -> None:
    code = make_tenant("code")
    for i in range(3):
        rig.sandbox.fault("403_domain", domain=f"bad-{i}.org")
        submit_some(make_tenant(f"bad-{i}"), 1, category="marketing")
        rig.turn(MARKETING)
        submit_some(code, 1)
        rig.turn()
    assert (rig.circuit(), rig.redis.hget(rig.governor.keys[0], "circuit_rail")) == ("refusing", b"marketing")
    assert statuses(tenant=code) == {"sent": 3}


# ---------------------------------------------------------------------------------------------------- the tenant's own


def test_refused_product_mail_does_not_keep_the_tenant_s_own_login_codes(rig: Rig) -> None:
    """They share a lane and a rail; what is known of the one says nothing of the other."""
    tenant = make_tenant("a")
    submit_some(tenant, 200, category="product", subject="POISON")
    rig.sandbox.fault("422", contains="POISON")
    rig.drain()
    for n in range(1, 6):
        submit_some(tenant, 1)
        rig.drain()
        assert statuses(category="transactional") == {"sent": n}
    lane = TenantLane.objects.get()
    assert (lane.priority, lane.hold_seconds) == (1, 10)
    assert statuses(category="product") == {"queued": 200}


def test_a_stream_of_login_codes_does_not_hide_a_culprit_among_the_product_mail(rig: Rig) -> None:
    tenant, other = make_tenant("a"), make_tenant("b")
    sends = [request(tenant, i, category="product", subject="POISON" if i == 40 else "News") for i in range(80)]
    culprit = submit_many(tenant, sends)[40]
    rig.sandbox.fault("422", contains="POISON")
    for n in range(1, 41):
        submit_some(tenant, 1)
        submit_some(other, 1)
        rig.turn()
        rig.turn()
        assert statuses(tenant=other) in ({"sent": n}, {"sent": n - 1, "queued": 1}, {"sent": n - 2, "queued": 2})
    rig.drain()
    assert statuses(category="product") == {"sent": 79, "failed": 1}
    assert statuses(category="transactional") == {"sent": 80}
    assert DeadLetter.objects.get().send_id == culprit.id


def test_what_is_known_of_one_priority_says_nothing_of_another(rig: Rig) -> None:
    tenant = make_tenant("a")
    product, codes = LaneKey(tenant.pk, None, 1), LaneKey(tenant.pk, None, 0)
    for lane, seconds in ((product, 10), (product, 20), (codes, 10), (codes, 20)):
        lanes.hold(Channel.EMAIL, Rail.TRANSACTIONAL, lane, Failure("refused"))
        assert TenantLane.objects.get(priority=lane.priority).hold_seconds == seconds
    lanes.isolate(Channel.EMAIL, Rail.TRANSACTIONAL, [product])
    held = TenantLane.objects.exclude(hold_code="")
    assert [lane.priority for lane in held] == [0], "the codes are still held"
    lanes.release(Channel.EMAIL, Rail.TRANSACTIONAL, [codes])
    assert not held.all()


def test_a_tenant_that_is_refused_in_both_priorities_takes_nobody_with_it_twice(rig: Rig) -> None:
    """What was learned of its codes is not forgotten for its product mail: else strangers are refused with either."""
    bad, others = make_tenant("bad"), [make_tenant() for _ in range(6)]
    rig.sandbox.fault("422", contains="POISON")
    for category in ("transactional", "product"):
        submit_some(bad, 60, category=category, subject="POISON")
    for _ in range(40):
        for other in others:
            submit_some(other, 1)
        rig.turn()
        rig.turn()
    refused = [set(b.send_ids) for b in rig.batches() if b.state == "refused"]
    strangers = set(Send.objects.exclude(tenant=bad).values_list("id", flat=True))
    assert sum(bool(ids & strangers) for ids in refused) <= 2 * math.ceil(math.log2(8)), "each lane is sought once"
    assert Send.objects.exclude(tenant=bad).exclude(status="sent").count() <= 12, "the last rounds"
