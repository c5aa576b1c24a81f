"""A delay that every request has costs no rate; one that only some have puts off what comes after them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core.governor.client import Bucket, Limits, Want
from messaging.dispatch import turn
from messaging.dispatch.lateness import AT_FIRST, LATE, REQUESTS, ROOM, Lateness, lateness_of
from messaging.domain.rails import Rail
from tests.core.governor.calls import Acquire
from tests.core.governor.model import Model
from tests.factories import make_tenant, submit_some
from tests.rig import Rig

TEN = Limits(Bucket(1.2, 9.8))
START = 1_790_000_000.0


def wire(delay: Callable[[int], float], requests: int) -> list[float]:
    """When so many requests leave, always asked for at once, with `delay(n)` seconds from the nth grant to the wire."""
    model, lateness, now = Model(), Lateness(), START
    leaving: list[tuple[float, float]] = []  # time, delay
    times: list[float] = []
    number = 0
    while len(times) < requests:
        decision = model.acquire(
            Acquire(f"g{number}", f"g{number}", "marketing", TEN, (Want(1, 2, 1, TEN.request),)), now
        )
        if decision.granted:
            leaving.append((now + delay(number), delay(number)))
            number += 1
        until = now + decision.wait + 1e-6
        while leaving and min(leaving)[0] <= until:
            at, seconds = leaving.pop(leaving.index(min(leaving)))
            times.append(at)
            if late := lateness.of(seconds):
                model.late(late, TEN.request, at)
        now = until
    return times


def rate(times: list[float]) -> float:
    return (len(times) - 1) / (times[-1] - times[0])


@pytest.mark.parametrize("milliseconds", [0, 30, 40, 60, 100, 300])
def test_a_constant_delay_costs_no_rate(milliseconds: int) -> None:
    assert rate(wire(lambda n: milliseconds / 1000, 300)) >= 0.97 * 9.8


def test_a_delay_that_changes_for_good_costs_some_seconds_once() -> None:
    times = wire(lambda n: 0.005 if n < 200 else 0.1, 900)
    assert rate(times[300:]) >= 0.97 * 9.8


@pytest.mark.parametrize("usual", [0.005, 0.1])
def test_a_single_late_request_still_shifts_what_follows(usual: float) -> None:
    """It arrives 95 ms late: all after it do, too, but for what the refill has room for; no second has eleven."""
    times = wire(lambda n: usual + 0.095 if n == 150 else usual, 200)
    assert times[149] - times[139] == pytest.approx(10 / 9.8, abs=0.001)
    assert times[159] - times[149] == pytest.approx(10 / 9.8 + 0.095 - ROOM, abs=0.001)
    assert times[169] - times[159] == pytest.approx(10 / 9.8, abs=0.001)
    assert all(later - earlier >= 1 for earlier, later in zip(times, times[10:], strict=False))


def test_a_busy_moment_is_not_taken_for_what_is_usual() -> None:
    """Three seconds: each of its requests is late, the last one as much as the first."""
    times = wire(lambda n: 0.075 if 150 <= n < 180 else 0.005, 250)
    assert all(later - earlier >= 1 for earlier, later in zip(times, times[10:], strict=False))


def test_what_the_refill_has_room_for_is_not_told() -> None:
    lateness = Lateness()
    assert lateness.of(AT_FIRST + LATE) == 0
    for seconds in (0.002, 0.008, 0.005):
        assert lateness.of(seconds) == 0
    assert lateness.of(0.05) == pytest.approx(0.05 - 0.005 - ROOM)


def test_what_is_usual_follows_the_last_requests() -> None:
    lateness = Lateness()
    for _ in range(REQUESTS):
        lateness.of(0.005)
    told = [lateness.of(0.1) > 0 for _ in range(REQUESTS)]
    usual_again = REQUESTS - REQUESTS // 4
    assert told == [True] * usual_again + [False] * (REQUESTS - usual_again)


@pytest.mark.django_db
def test_a_turn_tells_what_is_late_and_not_what_is_usual(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time from grant to wire goes through the tracker of this provider and rail, and the governor hears the rest."""
    told: list[float] = []
    seen: list[float] = []
    says = iter([0.0, 0.25, 0.0])

    def of(self: Lateness, seconds: float) -> float:
        seen.append(seconds)
        return next(says)

    monkeypatch.setattr(Lateness, "of", of)
    monkeypatch.setattr(turn.Governor, "late", lambda self, seconds, limits: told.append(seconds))
    tenant = make_tenant()
    for _ in range(3):
        submit_some(tenant, 1)
        rig.turn()
    assert (len(seen), told) == (3, [0.25])
    assert min(seen) > 0
    assert lateness_of("resend", Rail.TRANSACTIONAL) is not lateness_of("resend", Rail.MARKETING)
