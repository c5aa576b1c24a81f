"""What lies beyond a tenant's share of the transactional rail waits, and nobody and nothing else does."""

from __future__ import annotations

import pytest

from core.models import Tenant
from messaging.dispatch.scheduler import Grant, Memory, Wait, search
from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel, Rail
from messaging.ledger import buckets, lanes
from messaging.models import RateLimitBucket
from messaging.providers.registry import adapter_for
from tests.factories import insert_raw, make_tenant, submit_some
from tests.rig import Rig

pytestmark = pytest.mark.django_db


@pytest.fixture
def flooding(rig: Rig) -> Tenant:
    """Whenever somebody looks it has five tokens, and ten are worth a request."""
    tenant = make_tenant("flooding")
    RateLimitBucket.objects.create(
        provider="resend",
        scope="tenant",
        unit="send",
        tenant=tenant,
        rail="transactional",
        capacity=100,
        refill_per_second=10,
    )
    buckets.forget()
    insert_raw(tenant, 300, category="product")
    return tenant


def look(rig: Rig, memory: Memory, rail: Rail = Rail.TRANSACTIONAL) -> Grant | Wait | None:
    adapter = adapter_for(Channel.EMAIL)
    assert adapter
    flooding = Tenant.objects.get(slug="flooding")
    rig.redis.hset(rig.governor.keys[1], f"{flooding.pk}:transactional", f"5:{rig.redis.time()[0] + 60}:0")
    return search(adapter, rig.governor, Channel.EMAIL, rail, memory)


def took(found: Grant | Wait | None) -> list[tuple[int, int, int]]:
    assert isinstance(found, Grant), found
    return [(take.tenant, take.priority, take.sends) for take in found.takes]


def test_it_waits_as_its_own_problem(rig: Rig, flooding: Tenant) -> None:
    memory = Memory()
    found = look(rig, memory)
    assert isinstance(found, Wait)
    assert (found.reason, found.new_work_helps, memory.starved()) == ("tenant", True, [])
    assert rig.governor.spent() == 0
    assert float(rig.redis.hget(rig.governor.keys[0], "mark") or 0) == 0
    for tenant in (flooding, make_tenant("other")):
        submit_some(tenant, 50, category="marketing")
    assert sum(sends for _, _, sends in took(look(rig, Memory(), Rail.MARKETING))) == 100, "its own newsletter, too"


def test_its_login_codes_leave_at_once_and_before_its_product_mail(rig: Rig, flooding: Tenant) -> None:
    memory = Memory()
    look(rig, memory)
    submit_some(flooding, 3)
    assert took(look(rig, memory)) == [(flooding.pk, 0, 3), (flooding.pk, 1, 2)]


def test_others_codes_leave_at_once(rig: Rig, flooding: Tenant) -> None:
    memory, other = Memory(), make_tenant("other")
    look(rig, memory)
    submit_some(other, 3)
    assert took(look(rig, memory)) == [(other.pk, 0, 3), (flooding.pk, 1, 5)]


@pytest.mark.parametrize("apart_next", [False, True])
def test_lanes_that_go_apart_do_not_wait_for_its_tokens_nor_it_for_theirs(
    rig: Rig, flooding: Tenant, apart_next: bool
) -> None:
    memory, other = Memory(), make_tenant("other")
    memory.apart_next = apart_next
    submit_some(other, 3)
    apart = flooding if apart_next else other
    lanes.isolate(Channel.EMAIL, Rail.TRANSACTIONAL, [LaneKey(apart.pk, None, 1 if apart_next else 0)])
    assert took(look(rig, memory)) == [(other.pk, 0, 3)]
