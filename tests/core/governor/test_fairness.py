"""The split of a batch: max–min fair within a priority, and fair between batches through the ring."""

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.governor.client import Bucket, Limits
from tests.core.governor.rig import TimedGovernor, want

SHARED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize(
    ("wants", "room", "shares"),
    [
        ([100, 100], 100, [50, 50]),
        ([100, 1], 100, [99, 1]),
        ([1, 100, 10], 60, [1, 49, 10]),
        ([5, 5, 5], 5, [2, 2, 1]),
        ([5, 5, 5], 2, [1, 1, 0]),
        ([3, 3], 100, [3, 3]),
        ([50_000, 1, 1, 1], 100, [97, 1, 1, 1]),
    ],
)
def test_equal_shares_unless_a_tenant_wants_less(
    governor: TimedGovernor, wants: list[int], room: int, shares: list[int]
) -> None:
    decision = governor.ask("marketing", *(want(i, n) for i, n in enumerate(wants, 1)), max_batch=room)
    assert list(decision.shares) == shares


def test_a_lower_priority_number_is_served_first_across_all_tenants(governor: TimedGovernor) -> None:
    decision = governor.ask("transactional", want(1, 9, 1), want(2, 4, 0), want(3, 4, 0), max_batch=10)
    assert decision.shares == (2, 4, 4)


def test_a_priority_that_got_nothing_keeps_its_place_in_the_ring(governor: TimedGovernor) -> None:
    first = governor.ask("transactional", want(1, 1, 0), want(2, 1, 1), want(3, 1, 1), max_batch=2)
    assert (first.shares, first.cursors) == ((1, 1, 0), {0: 1, 1: 2})
    governor.advance(0.1)
    second = governor.ask("transactional", want(1, 2, 0), want(2, 1, 1), want(3, 1, 1), max_batch=2)
    assert (second.shares, second.cursors) == ((2, 0, 0), {0: 1, 1: 2})
    governor.advance(0.1)
    assert governor.ask("transactional", want(2, 1, 1), want(3, 1, 1), max_batch=1).shares == (0, 1)


def test_the_left_over_goes_round(governor: TimedGovernor) -> None:
    got = []
    for _ in range(3):
        got.append(governor.ask("marketing", *(want(i, 50) for i in (1, 2, 3)), max_batch=10).shares)
        governor.advance(0.1)
    assert got == [(4, 3, 3), (3, 4, 3), (3, 3, 4)]


def test_tenants_are_ordered_as_numbers(governor: TimedGovernor) -> None:
    big = 2**53 - 1
    order = []
    for _ in range(4):
        decision = governor.ask("marketing", *(want(i) for i in (10, 9, big, 100)), max_batch=1)
        order.append(decision.cursors[0])
        governor.advance(0.1)
    assert order == [9, 10, 100, big]


@pytest.mark.parametrize("tenants", [3, 40, 99, 100, 101, 130, 250])
def test_over_a_full_ring_each_backlogged_tenant_gets_the_same_give_or_take_one(
    governor: TimedGovernor, tenants: int
) -> None:
    """As the dispatcher asks: at most 100 tenants, those next in the ring. It holds after every batch."""
    got = Counter(dict.fromkeys(range(1, tenants + 1), 0))
    cursor = 0
    for _ in range(60):
        ring = sorted(got, key=lambda tenant: (tenant <= cursor, tenant))[:100]
        decision = governor.marketing(*(want(tenant, 100) for tenant in ring))
        got.update(dict(zip(ring, decision.shares, strict=True)))
        cursor = decision.cursors[0]
        governor.advance(0.1)
        assert max(got.values()) - min(got.values()) <= 1
    assert got.total() == 6_000, "no batch left with an empty seat"


def test_a_newcomer_is_served_within_one_round(governor: TimedGovernor) -> None:
    """Whoever was there before, and however much they want."""
    governor.marketing(*(want(tenant, 50_000) for tenant in range(2, 101)))
    governor.advance(0.1)
    assert governor.marketing(*(want(tenant, 50_000) for tenant in range(1, 101))).shares[0] == 1


def best_worst_off(demands: Sequence[int], room: int) -> tuple[int, ...]:
    """Max–min by its definition: of all ways to hand out `room`, the one whose sorted shares are the greatest."""
    ways = itertools.product(*(range(demand + 1) for demand in demands))
    return max(tuple(sorted(way)) for way in ways if sum(way) <= room)


@SHARED
@given(demands=st.lists(st.integers(1, 5), min_size=1, max_size=5), room=st.integers(1, 20), cursor=st.integers(0, 6))
def test_the_split_is_max_min_optimal(governor: TimedGovernor, demands: list[int], room: int, cursor: int) -> None:
    governor.client.flushdb()
    governor.client.hset(governor.keys[0], "cursor:0", cursor)
    shares = governor.ask("marketing", *(want(i, n) for i, n in enumerate(demands, 1)), max_batch=room).shares
    assert tuple(sorted(shares)) == best_worst_off(demands, room)


@SHARED
@given(
    wants=st.lists(
        st.tuples(st.integers(1, 500), st.integers(1, 80), st.integers(0, 400).map(lambda n: n / 8)),
        min_size=1,
        max_size=120,
        unique_by=lambda entry: entry[0],
    ),
    room=st.integers(1, 150),
    quota=st.none() | st.integers(1, 150),
    marketing=st.booleans(),
)
def test_no_split_exceeds_the_room_the_quota_a_want_or_a_tenants_tokens(
    governor: TimedGovernor,
    wants: list[tuple[int, int, float]],
    room: int,
    quota: int | None,
    marketing: bool,
) -> None:
    governor.client.flushdb()
    governor.limits = Limits(Bucket(1, 10), Bucket(quota, 1) if quota else None)
    asked = [want(tenant, sends, bucket=Bucket(2 + tokens, 1, 1)) for tenant, sends, tokens in wants]
    decision = governor.ask("marketing" if marketing else "transactional", *asked, max_batch=room)
    assert decision.granted
    room = min(room, quota or room)
    may = [min(w.sends, int(w.bucket.capacity - (1 if marketing else 0))) for w in asked]
    assert all(0 <= share <= most for share, most in zip(decision.shares, may, strict=True))
    assert sum(decision.shares) == min(room, sum(may)), "and no seat stays empty that somebody could have"
    unsatisfied = [share for share, most in zip(decision.shares, may, strict=True) if share < most]
    assert not unsatisfied or max(decision.shares) - min(unsatisfied) <= 1, "nobody has more while another lacks"
    assert all(tokens >= 0 for tokens, _, _ in governor.tenants().values())
