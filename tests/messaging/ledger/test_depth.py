"""What counts as depth: due sends that the transactional rail could soon send. What waits for its own reasons holds nobody."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from redis import Redis

from core.db.cursor import ledger_cursor
from core.governor.client import Governor
from core.models import Tenant
from messaging.backpressure.measure import Measurement, measure
from messaging.backpressure.policy import Adaptive, Fixed, Marks
from messaging.domain.rails import Channel, Rail
from messaging.ledger import buckets
from messaging.ledger import depth as depth_module
from messaging.ledger.lane_marks import judge_lanes
from messaging.models import Blast, RateLimitBucket, Send, TenantLane
from messaging.providers.registry import adapter_for
from messaging.providers.resend.adapter import ResendAdapter
from messaging.services.control import pause_blast, pause_tenant_lane
from tests.factories import insert_raw, make_blast, make_tenant
from tests.rig import seed_buckets

pytestmark = pytest.mark.usefixtures("redis", "seeded")

WIDE = Fixed(1_000_000, 1_000)  # counts everything; a second's worth of what a tenant's bucket lets through
MARKS = Marks(1_000_000, 1_000)


@pytest.fixture
def seeded(db: None) -> None:
    seed_buckets(rate=10.0)


@pytest.fixture
def acme() -> Tenant:
    return make_tenant("acme")


def see(redis: Redis, policy: Any = WIDE) -> Measurement:
    adapter = adapter_for(Channel.EMAIL)
    assert isinstance(adapter, ResendAdapter)
    return measure(adapter, redis, policy)


def depth(redis: Redis) -> int:
    return see(redis).depth


def test_both_priorities_and_blasts_count_and_marketing_does_not(redis: Redis, acme: Tenant) -> None:
    insert_raw(acme, 3, category="transactional")
    insert_raw(acme, 4, category="product")
    insert_raw(acme, 50, category="marketing")
    make_blast(acme, 60)
    make_blast(acme, 5, category="product")
    assert see(redis) == Measurement(12, MARKS)


def test_what_is_not_due_does_not_count(redis: Redis, acme: Tenant) -> None:
    insert_raw(acme, 9, category="transactional")
    ids = list(Send.objects.values_list("pk", flat=True)[:4])
    Send.objects.filter(pk__in=ids).update(status="scheduled")
    assert depth(redis) == 5


def test_paused_and_held_lanes_and_inactive_tenants_do_not_count(redis: Redis, acme: Tenant) -> None:
    paused, held, gone = make_tenant("paused"), make_tenant("held"), make_tenant("gone", active=False)
    for tenant in (acme, paused, held, gone):
        insert_raw(tenant, 10, category="transactional")
    make_blast(gone, 10, category="product")
    pause_tenant_lane(paused, Channel.EMAIL, Rail.TRANSACTIONAL)
    hold = TenantLane.objects.create(
        tenant=held,
        channel="email",
        rail="transactional",
        priority=0,
        hold_code="refused",
        held_until=timezone.now() + timedelta(minutes=1),
    )
    make_blast(held, 7, category="product")  # its own lane: goes on
    assert depth(redis) == 17
    hold.held_until = timezone.now() - timedelta(seconds=1)
    hold.save()
    assert depth(redis) == 27


def test_a_pause_of_the_marketing_lane_says_nothing_of_this_rail(redis: Redis, acme: Tenant) -> None:
    pause_tenant_lane(acme, Channel.EMAIL, Rail.MARKETING)
    insert_raw(acme, 10, category="transactional")
    assert depth(redis) == 10


def test_paused_and_held_blasts_do_not_count(redis: Redis, acme: Tenant) -> None:
    pause_blast(make_blast(acme, 10, category="product").pk)
    Blast.objects.filter(pk=make_blast(acme, 10, category="product").pk).update(
        hold_code="refused", held_until=timezone.now() + timedelta(minutes=1)
    )
    make_blast(acme, 3, category="product", state="cancelled")
    make_blast(acme, 4, category="product")
    assert depth(redis) == 4


def _tokens(redis: Redis, tenant: Tenant, tokens: float, rail: str = "") -> None:
    (seconds, _) = redis.time()
    redis.hset(
        Governor(redis, "resend").keys[1], f"{tenant.pk}{rail}", f"{tokens}:{seconds + 60}:0"
    )  # ahead: does not refill


def test_of_a_tenant_only_what_its_bucket_lets_through_counts(redis: Redis, acme: Tenant) -> None:
    """Capacity 1,000 and 1,000 a second: at most 2,000 within a second, 1,000 when the bucket is empty."""
    insert_raw(acme, 5_000, category="product")
    assert depth(redis) == 2_000
    _tokens(redis, acme, 0)
    assert depth(redis) == 1_000
    _tokens(redis, acme, 300.9)
    assert depth(redis) == 1_300


def test_a_starved_tenant_cannot_hold_marketing(redis: Redis, acme: Tenant) -> None:
    """Its 50,000 sends go one in two seconds; another tenant's codes still count in full behind them."""
    RateLimitBucket.objects.create(
        provider="resend", scope="tenant", unit="send", tenant=acme, capacity=1, refill_per_second=0.5
    )
    buckets.forget()
    insert_raw(acme, 50_000, category="product")
    _tokens(redis, acme, 0)
    policy = Fixed(100, 50)
    assert see(redis, policy) == Measurement(1, Marks(100, 50))  # counted as full: one token, and half of one comes
    _tokens(redis, acme, 0)
    insert_raw(make_tenant(), 120, category="transactional")
    assert see(redis, policy) == Measurement(100, Marks(100, 50))


def test_many_starved_tenants_do_not_hide_one_that_is_not(redis: Redis) -> None:
    for i in range(30):
        tenant = make_tenant(f"starved-{i}")
        insert_raw(tenant, 200, category="product")
        _tokens(redis, tenant, -1000)
    free = make_tenant("free")
    insert_raw(free, 40, category="transactional")
    assert see(redis, Fixed(100, 10)).depth == 40


def test_the_low_mark_decides_how_much_of_a_bucket_counts(redis: Redis, acme: Tenant) -> None:
    """The provider takes 1,000 sends a second: as many as the low mark in so much of one."""
    insert_raw(acme, 5_000, category="product")
    _tokens(redis, acme, 0)
    assert see(redis, Fixed(1_000_000, 2_500)).depth == 2_500
    assert see(redis, Fixed(1_000_000, 500)).depth == 500


def test_a_tenant_s_flood_beyond_its_share_does_not_reach_the_marks(redis: Redis, acme: Tenant) -> None:
    """Nothing is configured: half of the provider's rate is a tenant's. At first with a full bucket, then all the time."""
    RateLimitBucket.objects.filter(scope="tenant").delete()
    RateLimitBucket.objects.update(capacity=1.2, refill_per_second=9.8)
    buckets.forget()
    insert_raw(acme, 9_000, category="product")
    assert see(redis, Adaptive()) == Measurement(490 + 200, Marks(901, 400))
    _tokens(redis, acme, 99, rail=":transactional")  # a full request at the most comes together
    assert see(redis, Adaptive()) == Measurement(99 + 200, Marks(901, 400))
    insert_raw(make_tenant(), 120, category="transactional")
    assert see(redis, Adaptive()).depth == 99 + 200 + 120, "others' codes count behind it in full"


def test_a_level_of_the_marketing_rail_says_nothing_of_this_one(redis: Redis, acme: Tenant) -> None:
    RateLimitBucket.objects.filter(scope="tenant").delete()
    buckets.forget()
    insert_raw(acme, 5_000, category="product")
    _tokens(redis, acme, 0, rail=":marketing")
    assert depth(redis) == 500 + 500


def test_it_is_counted_up_to_the_high_mark(redis: Redis, acme: Tenant) -> None:
    insert_raw(acme, 5_000, category="transactional")
    assert see(redis, Fixed(100, 50)) == Measurement(100, Marks(100, 50))
    assert see(redis, Adaptive()) == Measurement(1001, Marks(1001, 500))


def test_while_the_circuit_is_open_its_backlog_does_not_count(redis: Redis, acme: Tenant) -> None:
    insert_raw(acme, 200, category="transactional")
    redis.hset(Governor(redis, "resend").keys[0], "circuit", "unreachable")
    assert see(redis, Fixed(100, 50)) == Measurement(100, None, "circuit")
    redis.hset(Governor(redis, "resend").keys[0], "circuit_rail", "marketing")  # this rail's goes on leaving
    assert see(redis, Fixed(100, 50)) == Measurement(100, Marks(100, 50))
    redis.hset(Governor(redis, "resend").keys[0], mapping={"circuit": "", "circuit_rail": ""})
    assert see(redis, Fixed(100, 50)) == Measurement(100, Marks(100, 50))


def test_without_a_global_bucket_nothing_leaves_and_nothing_counts(redis: Redis, acme: Tenant) -> None:
    RateLimitBucket.objects.all().delete()
    buckets.forget()
    insert_raw(acme, 200, category="transactional")
    assert see(redis) == Measurement(0, None, "no_bucket")


@pytest.mark.parametrize(("sends", "statements"), [(0, 1), (3, 2)])
def test_a_look_at_a_rail_that_keeps_up_is_one_or_two_statements_and_no_call_of_redis(
    redis: Redis, acme: Tenant, monkeypatch: pytest.MonkeyPatch, sends: int, statements: int
) -> None:
    if sends:
        insert_raw(acme, sends, category="transactional")
    see(redis, Adaptive())  # buckets are read every two seconds
    before = redis.info("commandstats")
    opened = []
    with monkeypatch.context() as patch, CaptureQueriesContext(connection) as others:
        patch.setattr(depth_module, "ledger_cursor", lambda: opened.append(1) or ledger_cursor())
        see(redis, Adaptive())
    assert (len(opened), len(others)) == (statements, 0)  # a cursor runs one statement here
    after = redis.info("commandstats")
    assert {n for n in after if after[n]["calls"] != before.get(n, {"calls": 0})["calls"]} <= {"cmdstat_info"}


@pytest.mark.parametrize("how", ["paused", "held"])
def test_a_closed_product_lane_leaves_the_tenant_s_login_codes_in_the_depth(
    redis: Redis, acme: Tenant, how: str
) -> None:
    insert_raw(acme, 3, category="transactional")
    insert_raw(acme, 40, category="product")
    closed = (
        {"paused": True} if how == "paused" else {"hold_code": "refused", "held_until": timezone.now() + timedelta(1)}
    )
    TenantLane.objects.create(tenant=acme, channel="email", rail="transactional", priority=1, **closed)
    for _ in range(2):
        assert depth(redis) == 3
        judge_lanes()
