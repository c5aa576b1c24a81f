"""Pausing, resuming and cancelling lanes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction

from core.security.ids import new_id
from messaging.domain.errors import Conflict, NotFound
from messaging.domain.lane import LaneKey
from messaging.domain.lifecycle import BlastState
from messaging.domain.rails import Channel, Rail
from messaging.ledger.claim import Take, lock_lanes, take
from messaging.ledger.lanes import hold
from messaging.ledger.record import Failure
from messaging.models import Blast, BlastHint, Send, TenantLane
from messaging.services import control
from tests.factories import insert_raw, make_blast, make_tenant

STEPS: dict[str, Callable[..., Blast]] = {
    "pause": control.pause_blast,
    "resume": control.resume_blast,
    "cancel": control.cancel_blast,
}
#: What each does to a blast in each state; what is not here is a Conflict.
TARGETS = {
    ("pause", "running"): "paused",
    ("pause", "paused"): "paused",
    ("resume", "paused"): "running",
    ("resume", "running"): "running",
    ("cancel", "planning"): "cancelled",
    ("cancel", "running"): "cancelled",
    ("cancel", "paused"): "cancelled",
    ("cancel", "cancelled"): "cancelled",
}


@pytest.fixture
def tickets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Channel, Rail]]:
    sent: list[tuple[Channel, Rail]] = []
    monkeypatch.setattr(control, "send_ticket", lambda channel, rail: sent.append((channel, rail)))
    return sent


@pytest.mark.django_db
@pytest.mark.parametrize("state", [state.value for state in BlastState])
@pytest.mark.parametrize("step", STEPS)
def test_steps_of_a_blast(step: str, state: str) -> None:
    blast = make_blast(make_tenant(), 2, state=state)
    target = TARGETS.get((step, state))
    if target is None:
        with pytest.raises(Conflict) as caught:
            STEPS[step](blast.pk)
        assert caught.value.code == "blast_state"
    else:
        assert STEPS[step](blast.pk).state == target
    blast.refresh_from_db()
    assert blast.state == (target or state)


@pytest.mark.django_db
@pytest.mark.parametrize("step", STEPS)
def test_blast_of_another_tenant_is_not_found(step: str) -> None:
    blast = make_blast(make_tenant(), 1)
    for args in ((blast.pk, make_tenant().pk), (uuid4(), blast.tenant_id)):
        with pytest.raises(NotFound):
            STEPS[step](args[0], tenant_id=args[1])
    assert Blast.objects.get().state == BlastState.RUNNING


@pytest.mark.django_db
def test_resume_makes_due_what_is_queued(
    tickets: list[tuple[Channel, Rail]], django_capture_on_commit_callbacks: Any
) -> None:
    blast = make_blast(make_tenant(), 3, state="paused")
    first = Send.objects.order_by("id").values_list("id", flat=True)[0]
    with django_capture_on_commit_callbacks(execute=True):
        control.resume_blast(blast.pk, tenant_id=blast.tenant_id)
    assert list(BlastHint.objects.values_list("blast_id", "has_due", "low")) == [(blast.pk, True, first)]
    assert tickets == [(Channel.EMAIL, Rail.MARKETING)]


@pytest.mark.django_db
def test_resume_with_nothing_queued(
    tickets: list[tuple[Channel, Rail]], django_capture_on_commit_callbacks: Any
) -> None:
    blast = make_blast(make_tenant(), 1, state="paused")
    Send.objects.update(status="scheduled")
    with django_capture_on_commit_callbacks(execute=True):
        control.resume_blast(blast.pk)
    assert (list(BlastHint.objects.all()), tickets) == ([], [])


@pytest.mark.django_db
def test_tenant_lane(tickets: list[tuple[Channel, Rail]], django_capture_on_commit_callbacks: Any) -> None:
    tenant = make_tenant()
    held = TenantLane.objects.create(tenant=tenant, channel="email", rail="marketing", priority=2, isolated=True)
    with django_capture_on_commit_callbacks(execute=True):
        for _ in range(2):
            control.pause_tenant_lane(tenant, Channel.EMAIL, Rail.TRANSACTIONAL)
            control.pause_tenant_lane(tenant, Channel.EMAIL, Rail.MARKETING)
    assert tickets == []
    assert sorted(TenantLane.objects.values_list("rail", "priority", "paused")) == [
        ("marketing", 2, True),
        ("transactional", 0, True),
        ("transactional", 1, True),
    ]
    with django_capture_on_commit_callbacks(execute=True):
        control.resume_tenant_lane(tenant, Channel.EMAIL, Rail.MARKETING)
    assert tickets == [(Channel.EMAIL, Rail.MARKETING)]
    held.refresh_from_db()
    assert (held.paused, held.isolated) == (False, True)  # what the dispatcher wrote is not touched


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["paused", "held by the dispatcher"])
@pytest.mark.parametrize("lane", ["blast", "tenant"])
def test_when_pause_has_returned_no_claim_takes_from_the_lane(lane: str, how: str) -> None:
    """A claim that holds the lane is waited for; one that comes later gets nothing."""
    tenant = make_tenant()
    blast = make_blast(tenant, 10) if lane == "blast" else None
    if blast is None:
        insert_raw(tenant, 10)
    held, paused, events = threading.Event(), threading.Event(), []

    def pause() -> None:
        held.wait()
        if how != "paused":
            with transaction.atomic():
                key = LaneKey(tenant.pk, blast.pk) if blast else LaneKey(tenant.pk, None, 2)
                hold(Channel.EMAIL, Rail.MARKETING, key, Failure("refused"))
        elif blast is not None:
            control.pause_blast(blast.pk)
        else:
            control.pause_tenant_lane(tenant, Channel.EMAIL, Rail.MARKETING)
        events.append("paused")
        paused.set()
        connection.close()

    def claim(then: Callable[[], None]) -> int:
        takes = [Take(tenant=tenant.pk, priority=2, blast=blast.pk if blast else None, sends=3)]
        with transaction.atomic():
            lock_lanes(takes)
            bound, _ = take(Channel.EMAIL, Rail.MARKETING, 2, new_id(), takes)
            then()
        return len(bound)

    def while_held() -> None:
        held.set()
        assert not paused.wait(0.1)  # it waits for this claim
        events.append("claimed")

    thread = threading.Thread(target=pause)
    thread.start()
    try:
        assert claim(while_held) == 3
    finally:
        held.set()
        thread.join()
    assert events == ["claimed", "paused"]
    assert claim(lambda: None) == 0
