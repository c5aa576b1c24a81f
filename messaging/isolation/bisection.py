"""The search for the culprit in a lane whose batch was refused without naming an item: pure functions of what is known.

A refused batch of n sends holds a culprit, so the lane's oldest n are *suspects*. Half of them are sent, then half of those that
are still suspected, until one is refused alone: 1 + log2 n requests, in which all the others of the batch are sent. One that is
refused alone may be a culprit, or the first of a content that is refused whoever gets it. So *another* of the lane is tried:

    accepted: the content is in order; the oldest goes alone once more, and refused again it is convicted
    refused:  the lane is held (10 s, then twice as long each time, up to 10 minutes), and then again another one is tried

Another one is one of the hundred oldest, at random: a lane with several culprits is not held by the same one for ever.

Nothing is convicted without an acceptance between two refusals: a provider that refuses everybody for a while costs nobody a
send. A lane that is held for something else (its sender domain, a key that is missing) has no suspects, and its trial says
nothing of a culprit. The steps name no send, since the claim takes the oldest: if others come between, a step is wasted and
nothing is wrong.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeVar

from messaging.domain.lane import Search

T = TypeVar("T")


class Step(Enum):
    """What a refusal of a lane's own batch leads to."""

    HALVE = auto()
    TRY_ANOTHER = auto()
    HOLD = auto()
    CONVICT = auto()


def after_refusal(known: Search, sends: int, *, trial: bool, only_one: bool) -> tuple[Step, Search]:
    """A batch of `sends` of one lane was refused.

    `trial`: it was the one send of a held lane. `only_one`: nothing else waits in the lane, and others were accepted since it
    was held: there will be no better witness.
    """
    if sends > 1:
        return Step.HALVE, Search(suspects=sends)
    if known.convicting or (trial and only_one and known.suspects):
        return Step.CONVICT, Search()
    if trial and not known.suspects:
        return Step.HALVE, Search(suspects=1)
    return (Step.HOLD if trial else Step.TRY_ANOTHER), Search(suspects=1)


def after_acceptance(known: Search, sends: int, *, trial: bool) -> Search:
    """A batch of `sends` of one lane was accepted. Without suspects left, the lane is like any other again."""
    if trial:
        return Search(suspects=1, convicting=True) if known.suspects else Search()
    return Search(suspects=max(0, known.suspects - sends))


def halves(refused: list[T]) -> tuple[list[T], list[T]]:
    """Those of a refused batch that go together next: innocents leave with the first half that has no culprit."""
    middle = (len(refused) + 1) // 2
    return refused[:middle], refused[middle:]
