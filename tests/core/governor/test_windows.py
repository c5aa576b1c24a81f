"""What arrives at the provider: never more than its limit in any second, however the requests are delayed on their way, and
nothing of the limit is given away for that."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.governor.client import Bucket, Limits
from tests.core.governor.calls import Acquire
from tests.core.governor.day import START
from tests.core.governor.model import Model
from tests.core.governor.rig import TimedGovernor, want

#: The rule for a limit of ten requests a second.
TEN = Limits(Bucket(1.2, 9.8))
#: Seconds from grant to wire by which requests differ, with room in the refill (0.98 n) for it.
ROOM = 0.020


def burst(model: Model, at: float, requests: int, held_up: float = 0.0) -> list[float]:
    """The times of so many grants, asked for as soon as there may be one (or `held_up` later)."""
    times: list[float] = []
    while len(times) < requests:
        call = Acquire(f"{at}", f"{at}", "transactional", TEN, (want(),))
        decision = model.acquire(call, at)
        if decision.granted:
            times.append(at)
        at += 1e-6 + decision.wait + (0 if decision.granted else held_up)
    return times


def fixed_windows(times: list[float], phase: float) -> int:
    """The most in any window of a provider whose windows begin at `phase`."""
    windows = [int(at - START + 10 - phase) for at in times]
    return max(windows.count(window) for window in windows)


def sliding_windows(times: list[float]) -> int:
    """The most in any second."""
    return max(sum(1 for at in times if first <= at < first + 1) for first in times)


@settings(deadline=None, max_examples=80)
@given(
    pauses=st.lists(st.floats(0.05, 30), min_size=2, max_size=2),
    delays=st.lists(st.floats(0, ROOM), min_size=24, max_size=24),
    phase=st.floats(0, 1),
)
def test_a_burst_on_an_idle_system_stays_within_the_limit_in_every_second(
    pauses: list[float], delays: list[float], phase: float
) -> None:
    """The bucket was idle, and is full: that is no credit. Else the eleventh token is there a second after the first."""
    model, at, wire = Model(), START, []
    model.acquire(Acquire("first", "first", "transactional", TEN, (want(),)), at - 60)
    for number, pause in enumerate(pauses):
        at += 0.125 + pause
        times = burst(model, at, 12)
        wire += [granted + delays[12 * number + n] for n, granted in enumerate(times)]
        at = times[-1]
    wire.sort()
    assert sliding_windows(wire) <= 10
    assert fixed_windows(wire, phase) <= 10


def test_the_eleventh_request_of_a_burst_has_room_for_the_first_one_s_delay(governor: TimedGovernor) -> None:
    governor.limits = TEN
    governor.transactional()
    governor.advance(60)
    times = []
    while len(times) < 11:
        decision = governor.transactional()
        if decision.granted:
            times.append(governor.us)
        governor.advance(decision.wait)
    assert times[10] - times[0] == pytest.approx(10 / 9.8 * 1e6, abs=20)
    assert all(later - earlier == pytest.approx(1e6 / 9.8, abs=20) for earlier, later in pairwise(times))


def test_who_asks_a_little_late_under_a_backlog_gives_nothing_away() -> None:
    """The credit for lateness is kept: each request is asked for 15 ms after there was a token."""
    times = burst(Model(), START, 600, held_up=0.015)
    assert 599 / (times[-1] - times[0]) >= 0.999 * 9.8


def test_bursts_after_short_pauses_hardly_ever_use_the_credit_for_lateness() -> None:
    """A pause that fills the bucket in part only leaves credit: rare, and worth less than a full one."""
    chance, over = random.Random(9), 0
    for _ in range(400):
        model = Model()
        burst(model, START, 3)
        times = burst(model, START + 0.3 + chance.expovariate(1.0), 12)
        over += sliding_windows(sorted(at + chance.uniform(0.002, 0.012) for at in times)) > 10
    assert over <= 4
