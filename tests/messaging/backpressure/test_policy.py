"""Policies as tables: at which depth marketing yields, and when it goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.backpressure.policy import (
    BLIND_SECONDS,
    TRICKLE_EVERY,
    TRICKLE_SECONDS,
    Adaptive,
    Fixed,
    Marks,
    adaptive,
    blind_yields,
    expected_wait,
    yields,
)


@pytest.mark.parametrize(
    ("target", "low", "ceiling", "max_batch", "refill", "marks"),
    [
        (1.0, 0.5, 5000, 100, 9.8, Marks(901, 400)),  # nine requests fit into a second, four into half of one
        (1.0, 0.5, 5000, 100, 98.0, Marks(5000, 4900)),  # the ceiling
        (1.0, 0.5, 5000, 100, 49.0, Marks(4901, 2400)),
        (1.0, 0.5, 5000, 1, 9.8, Marks(10, 4)),  # a provider without a batch endpoint
        (1.0, 0.5, 5000, 100, 0.5, Marks(101, 50)),  # one request takes two seconds: yielding helps from the second on
        (1.0, 0.5, 5000, 1, 0.5, Marks(2, 0)),
        (0.7, 0.7, 5000, 10, 10.0, Marks(71, 70)),  # 0.7 × 10 is 7, whatever the last bit says
        (1.0, 0.5, 50, 100, 9.8, Marks(50, 49)),  # a ceiling below one batch is still obeyed
    ],
)
def test_adaptive(target: float, low: float, ceiling: int, max_batch: int, refill: float, marks: Marks) -> None:
    assert adaptive(target, low, ceiling, max_batch=max_batch, refill=refill) == marks
    assert Adaptive(target, low, ceiling).marks(max_batch=max_batch, refill=refill) == marks


def test_fixed_is_what_it_says_at_any_rate() -> None:
    assert Fixed(1000, 500).marks(max_batch=100, refill=9.8) == Fixed(1000, 500).marks(max_batch=1, refill=1e6)
    assert Fixed(1000, 500).marks(max_batch=100, refill=9.8) == Marks(1000, 500)


@pytest.mark.parametrize(
    ("depth", "max_batch", "refill", "seconds"),
    [(0, 100, 10, 0), (1, 100, 10, 0.1), (300, 100, 10, 0.3), (301, 100, 10, 0.4)],
)
def test_expected_wait(depth: int, max_batch: int, refill: float, seconds: float) -> None:
    assert expected_wait(depth, max_batch, refill) == pytest.approx(seconds)


@given(
    target=st.floats(0.01, 60),
    share=st.floats(0.01, 1),
    ceiling=st.integers(2, 100_000),
    max_batch=st.integers(1, 1000),
    refill=st.floats(0.01, 10_000),
)
def test_the_high_mark_is_the_first_depth_that_waits_too_long(
    target: float, share: float, ceiling: int, max_batch: int, refill: float
) -> None:
    marks = adaptive(target, target * share, ceiling, max_batch=max_batch, refill=refill)
    assert 0 <= marks.low < marks.high <= ceiling
    if marks.high < ceiling:
        assert expected_wait(marks.high, max_batch, refill) > target * (1 - 1e-6)
        if marks.high > max_batch + 1:
            assert expected_wait(marks.high - 1, max_batch, refill) <= target * (1 + 1e-6)


@pytest.mark.parametrize(
    ("now", "depth", "then"),
    [
        (False, 0, False),
        (False, 99, False),
        (False, 100, True),
        (True, 100, True),
        (True, 51, True),  # between the marks: as it was
        (False, 51, False),
        (True, 50, False),
        (True, 0, False),
    ],
)
def test_hysteresis(now: bool, depth: int, then: bool) -> None:
    assert yields(now, depth, Marks(100, 50)) is then


@pytest.mark.parametrize(
    ("seconds", "yielding"),
    [
        (0.0, True),
        (BLIND_SECONDS - 0.01, True),
        (BLIND_SECONDS, False),
        (BLIND_SECONDS + TRICKLE_SECONDS - 0.01, False),
        (BLIND_SECONDS + TRICKLE_SECONDS, True),
        (BLIND_SECONDS + TRICKLE_EVERY - 0.01, True),
        (BLIND_SECONDS + TRICKLE_EVERY, False),
        (BLIND_SECONDS + 100 * TRICKLE_EVERY + 0.5, False),
    ],
)
def test_without_sight_marketing_stands_still_for_a_minute_and_then_trickles(seconds: float, yielding: bool) -> None:
    assert blind_yields(seconds) is yielding
