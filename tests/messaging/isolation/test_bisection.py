"""The search for the culprit, as a table and against every lane that Hypothesis thinks of."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.domain.lane import Search
from messaging.isolation.bisection import Step, after_acceptance, after_refusal, halves

NOTHING = Search()


@pytest.mark.parametrize(
    ("known", "sends", "trial", "only_one", "step", "search"),
    [
        (NOTHING, 100, False, False, Step.HALVE, Search(100)),
        (Search(100), 50, False, False, Step.HALVE, Search(50)),
        (Search(2), 1, False, False, Step.TRY_ANOTHER, Search(1)),
        (NOTHING, 1, False, False, Step.TRY_ANOTHER, Search(1)),
        (Search(1), 1, True, False, Step.HOLD, Search(1)),
        (Search(1), 1, True, True, Step.CONVICT, NOTHING),
        (NOTHING, 1, False, True, Step.TRY_ANOTHER, Search(1)),  # refused once only
        (NOTHING, 1, True, True, Step.HALVE, Search(1)),  # the lane was held for something else: refused once only
        (NOTHING, 1, True, False, Step.HALVE, Search(1)),
        (Search(1, convicting=True), 1, False, False, Step.CONVICT, NOTHING),
        (Search(1, convicting=True), 3, False, False, Step.HALVE, Search(3)),  # others came between: begin again
    ],
)
def test_what_a_refusal_leads_to(
    known: Search, sends: int, trial: bool, only_one: bool, step: Step, search: Search
) -> None:
    assert after_refusal(known, sends, trial=trial, only_one=only_one) == (step, search)


@pytest.mark.parametrize(
    ("known", "sends", "trial", "search"),
    [
        (Search(100), 50, False, Search(50)),
        (Search(1), 1, False, NOTHING),
        (Search(3), 50, False, NOTHING),  # two workers at once
        (NOTHING, 100, False, NOTHING),
        (Search(1), 1, True, Search(1, convicting=True)),
        (NOTHING, 1, True, NOTHING),  # the lane was held for something else
    ],
)
def test_what_an_acceptance_leads_to(known: Search, sends: int, trial: bool, search: Search) -> None:
    assert after_acceptance(known, sends, trial=trial) == search


@pytest.mark.parametrize("count", range(2, 9))
def test_halves_are_two_parts_of_the_whole(count: int) -> None:
    first, second = halves(list(range(count)))
    assert first + second == list(range(count))
    assert 0 <= len(first) - len(second) <= 1


class _Lane:
    """A lane and a provider that refuses batches with a culprit in them; what the dispatcher would do, one request a step."""

    def __init__(self, sends: int, culprits: set[int], chance: random.Random) -> None:
        self.waiting, self.culprits, self.chance = list(range(sends)), culprits, chance
        self.sent: list[int] = []
        self.convicted: list[int] = []
        self.search, self.trial, self.holds, self.requests = NOTHING, False, 0, 0

    def step(self) -> None:
        if self.trial:
            batch = [self.chance.choice(self.waiting[1:] or self.waiting)]
        elif self.search.suspects:
            batch = self.waiting[: (self.search.suspects + 1) // 2]
        else:
            batch = self.waiting[:100]
        self.requests += 1
        if not self.culprits.isdisjoint(batch):
            only_one = self.trial and len(self.waiting) == 1
            step, self.search = after_refusal(self.search, len(batch), trial=self.trial, only_one=only_one)
            self.trial = step in (Step.TRY_ANOTHER, Step.HOLD)
            self.holds += step is Step.HOLD
            if step is Step.CONVICT:
                self.convicted += batch
                self.waiting.remove(batch[0])
        else:
            self.search, self.trial = after_acceptance(self.search, len(batch), trial=self.trial), False
            self.sent += batch
            self.waiting = [send for send in self.waiting if send not in batch]


@given(st.integers(1, 100), st.data(), st.randoms(use_true_random=False))
def test_one_culprit_is_found_wherever_it_is_at_a_bounded_number_of_requests(
    sends: int, data: st.DataObject, chance: random.Random
) -> None:
    culprit = data.draw(st.integers(0, sends - 1))
    lane = _Lane(sends, {culprit}, chance)
    while lane.waiting:
        lane.step()
        assert lane.requests <= 2 * math.ceil(math.log2(sends)) + 6 if sends > 1 else 3
    assert (lane.convicted, sorted(lane.sent)) == ([culprit], [n for n in range(sends) if n != culprit])


@given(st.integers(2, 300), st.data(), st.randoms(use_true_random=False))
def test_several_culprits_are_found_and_nobody_else(sends: int, data: st.DataObject, chance: random.Random) -> None:
    culprits = data.draw(st.sets(st.integers(0, sends - 1), min_size=1, max_size=max(1, sends // 10)))
    lane = _Lane(sends, culprits, chance)
    while lane.waiting:
        lane.step()
        assert lane.requests - lane.holds <= sends / 100 + 30 * len(culprits) + 6
    assert sorted(lane.convicted) == sorted(culprits)
    assert len(lane.sent) == sends - len(culprits)


def test_a_content_that_is_refused_whoever_gets_it_costs_one_request_a_hold_and_no_send() -> None:
    lane = _Lane(100_000, set(range(100_000)), random.Random(1))
    for _ in range(50):
        lane.step()
    assert (lane.convicted, lane.sent) == ([], [])
    assert lane.requests - lane.holds == 8, "100, 50, 25, 13, 7, 4, 2, 1"
