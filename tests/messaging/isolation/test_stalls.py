"""Contents at which the provider answers 500, again and again, while it takes all others: they bind no more strangers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from core.models import Tenant
from messaging.domain.lifecycle import BatchState
from messaging.models import Batch, TenantLane
from tests.factories import make_tenant, status_of, statuses, submit_some
from tests.rig import Rig

POISON = "makes the provider falter"


@pytest.fixture
def faltering(rig: Rig) -> Rig:
    rig.sandbox.fault("500_contains", contains=POISON)
    return rig


def _round(rig: Rig, others: list[Tenant], **poisoned: Any) -> None:
    """Each of the others has a code; bound batches are repeated, whatever they wait for."""
    for other in others:
        submit_some(other, 1)
    rig.drain()
    rig.lapse_leases()
    rig.drain()


def test_contents_that_make_a_provider_falter_bind_half_as_many_strangers_each_time(faltering: Rig) -> None:
    others, bad = [make_tenant() for _ in range(10)], make_tenant()
    for _ in range(6):
        submit_some(bad, 1, subject=POISON)
        submit_some(bad, 1)
        _round(faltering, others)
    bound = statuses(status="sending", tenant__in=others).get("sending", 0)
    assert bound <= 10 + 5 + 3 + 1  # half as many each time
    assert statuses(tenant__in=others) == {"sent": 60 - bound, "sending": bound}
    submit_some(bad, 3)
    faltering.drain()
    assert statuses(tenant=bad)["sent"] == 3  # its other mail leaves
    lane = TenantLane.objects.get(tenant=bad)
    assert lane.isolated
    assert faltering.circuit() == ""


def test_a_lane_that_faltered_alone_stays_apart_whatever_of_it_is_accepted(faltering: Rig) -> None:
    bad, other = make_tenant(), make_tenant()
    submit_some(bad, 1, subject=POISON)
    faltering.turn()
    submit_some(other, 1)
    faltering.turn()
    faltering.lapse_leases()
    faltering.drain()
    submit_some(bad, 3)
    faltering.drain()
    submit_some(bad, 1, subject=POISON)
    submit_some(other, 5)
    faltering.drain()
    assert statuses(tenant=other) == {"sent": 6}
    assert statuses(tenant=bad) == {"sent": 3, "sending": 2}


def test_a_provider_that_falters_for_everybody_sets_nobody_apart_and_opens_the_circuit(rig: Rig) -> None:
    rig.sandbox.fault("500")
    for _ in range(3):
        submit_some(make_tenant(), 1)
        rig.turn()
    rig.lapse_leases()
    rig.unblock()
    rig.turn()
    assert (rig.circuit(), TenantLane.objects.count()) == ("unreachable", 0)


def test_what_goes_apart_and_falters_does_not_count_towards_the_circuit(faltering: Rig) -> None:
    bad, other = make_tenant(), make_tenant()
    TenantLane.objects.create(tenant=bad, channel="email", rail="transactional", priority=0, isolated=True)
    submit_some(other, 1)
    faltering.drain()
    for i in range(5):
        submit_some(bad, 1, subject=f"{POISON} {i}")
        faltering.turn()
    assert Batch.objects.filter(state=BatchState.UNKNOWN).count() >= 1
    assert faltering.circuit() == ""


# ------------------------------------------------------------------------------ a circuit that one tenant's contents opened


@pytest.fixture
def opened(faltering: Rig) -> Tenant:
    """On a quiet system, by this tenant alone; its next probe is ten minutes away."""
    bad = make_tenant()
    for n in range(8):
        assert faltering.circuit() == ""
        submit_some(bad, 1, subject=f"{POISON} {n}")
        faltering.turn()
    faltering.redis.hset(faltering.governor.keys[0], "probe_at", str(time.time() + 600))
    return bad


@pytest.mark.parametrize("apart", [False, True])
def test_a_stranger_s_code_does_not_wait_for_the_probes_of_whose_contents_opened_it(
    faltering: Rig, opened: Tenant, apart: bool
) -> None:
    """Also if the next turn is that of what goes apart. It is the probe that closes it, and none of the other's goes with it."""
    submit_some(opened, 5)
    if apart:
        TenantLane.objects.create(tenant=opened, channel="email", rail="transactional", priority=0, isolated=True)
    assert faltering.turn() is None
    before = faltering.sandbox.stats()["requests_received"]
    code = submit_some(make_tenant(), 1)[0]
    assert faltering.turn() is not None
    assert (status_of(code.id), statuses(tenant=opened)["queued"]) == ("sent", 5)
    assert faltering.sandbox.stats()["requests_received"] == before + 1
    assert faltering.circuit() == ""
