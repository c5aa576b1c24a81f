"""Which faults and submits there are, when: pure functions of a seed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from devtools.chaos.faults import ACTS
from devtools.chaos.orders import Mischief, What, orders, rate
from devtools.chaos.schedule import FIRST, FROZEN_SECONDS, IN_TRANSACTION, KINDS, Planned, plan

SEEDS = range(40)


def ends(planned: list[Planned]) -> float:
    return max(one.at + one.seconds for one in planned)


def overlapping(planned: list[Planned]) -> int:
    stopping = [one for one in planned if one.kind.stops]
    return sum(second.at < first.at + first.seconds for first, second in pairwise(stopping))


@pytest.mark.parametrize("minutes", [1, 2, 5, 10])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_kind_happens_within_the_window(seed: int, minutes: float) -> None:
    window = minutes * 60 * 0.74
    planned = plan(seed, minutes, window)
    assert {one.kind.name for one in planned} == KINDS.keys() == ACTS.keys()
    assert planned == sorted(planned, key=lambda one: one.at)
    assert planned[0].at >= FIRST
    assert ends(planned) <= window + 0.001
    assert overlapping(planned) >= 1
    (frozen,) = (one for one in planned if one.kind.name == "worker-frozen")
    assert frozen.seconds == FROZEN_SECONDS > 30


@pytest.mark.parametrize("seed", SEEDS)
def test_in_a_full_run_a_frozen_worker_wakes_up_undisturbed(seed: int) -> None:
    planned = plan(seed, 5, 222)
    (frozen,) = (one for one in planned if one.kind.name == "worker-frozen")
    disturbing = [one for one in planned if one.kind.disturbs]
    assert {"postgres-crashed", "outage", "401", "provider-hangs"} <= {one.kind.name for one in disturbing}
    for one in disturbing:
        assert one.at > frozen.at + frozen.seconds or one.at + one.seconds < frozen.at


@pytest.mark.parametrize("seed", SEEDS)
def test_in_a_full_run_a_worker_frozen_in_a_transaction_is_all_there_is(seed: int) -> None:
    planned = plan(seed, 5, 222)
    frozen = [one for one in planned if one.kind.name in IN_TRANSACTION]
    assert len(frozen) == 2
    for ice in frozen:
        for one in planned:
            assert one is ice or one.at > ice.at + ice.seconds or one.at + one.seconds <= ice.at


def test_a_longer_run_has_them_more_often_and_for_longer() -> None:
    short, full = plan(1, 1, 41), plan(1, 5, 222)
    assert Counter(one.kind.name for one in full)["worker-killed"] == KINDS["worker-killed"].times
    assert max(one.seconds for one in full if one.kind.name == "outage") > 20
    assert max(one.seconds for one in short if one.kind.name == "outage") < 10


def test_a_seed_says_all() -> None:
    assert plan(7, 5, 222) == plan(7, 5, 222) != plan(8, 5, 222)
    assert orders(7, 5_000, 60) == orders(7, 5_000, 60) != orders(8, 5_000, 60)


@pytest.mark.parametrize("sends", [6_000, 100_000])
def test_each_recipient_is_asked_for_once(sends: int) -> None:
    found = orders(3, sends, 60)
    assert sum(order.size for order in found) == sends
    recipients = [to for order in found for to in order.recipients]
    assert len(set(recipients)) == len(recipients) == sends
    assert len({order.key for order in found}) == len(found)
    assert {order.what for order in found} == set(What)
    assert {order.mischief for order in found} == set(Mischief)
    assert all(0 <= order.at <= 60 for order in found)
    assert len({order.tenant for order in found}) == 4


def test_the_limit_leaves_half_of_the_time_for_faults() -> None:
    found = orders(3, 100_000, 216)
    least = sum(-(-order.size // 100) for order in found)
    assert 2 * least / 216 <= rate(found, 216) < 2 * least / 216 + 1
