"""What follows from an answer: the outcome table, as data.

Two tables, because one fact changes everything: once any attempt of a batch was unknown, its sends are *bound*. Then
only an acceptance (or the provider's word that the key was used before) ends it, and any other answer leaves batch,
bytes and key as they are.

What the governor hears is what the answer proves of the provider, whatever becomes of the sends. ANSWERED is what only the
provider itself can say, and only to the owner of the key; REFUSED shows that it is there; FORBIDDEN (403) may come from something
in front of it, and like CREDENTIAL closes no circuit (the rules are in docs/governor.md).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum, auto

from core.governor.client import Event
from messaging.domain.lifecycle import BatchState
from messaging.domain.rails import Rail
from messaging.providers.base import Confirmation, Verdict

#: Attempts of a send that did not leave the machine, counted while the provider was in use, before it fails for good.
MAX_ATTEMPTS = 10


class Fate(Enum):
    """What becomes of the sends of a batch."""

    SENT = auto()  # those that the answer names as errors fail
    DUE_AGAIN = auto()  # queued at once, no attempt counted
    BACK_OFF = auto()  # scheduled; an attempt, unless the circuit is open
    SORT_LANES = auto()  # wait, no attempt counted: the lane of the culprit is looked for, then the culprit in it
    SORT_SENDERS = auto()  # wait, no attempt counted: the refused sender domain is looked for, and held
    BOUND = auto()  # stay with the batch, which is repeated later
    AMBIGUOUS = auto()


#: Fates after which the sends are not with the provider: their tenants get their tokens back.
RETURNED = frozenset({Fate.DUE_AGAIN, Fate.BACK_OFF, Fate.SORT_LANES, Fate.SORT_SENDERS})


@dataclass(frozen=True, slots=True)
class Ruling:
    state: BatchState
    fate: Fate
    event: Event  # what the governor hears


#: Nothing of this batch was ever unknown.
FIRST: dict[Verdict, Ruling] = {
    Verdict.ACCEPTED: Ruling(BatchState.ACCEPTED, Fate.SENT, Event.ACCEPTED),
    Verdict.MISCOUNTED: Ruling(BatchState.UNKNOWN, Fate.BOUND, Event.ANSWERED),
    Verdict.RATE_LIMITED: Ruling(BatchState.RATE_LIMITED, Fate.DUE_AGAIN, Event.RATE_LIMITED),
    Verdict.QUOTA: Ruling(BatchState.RATE_LIMITED, Fate.DUE_AGAIN, Event.QUOTA),
    Verdict.CREDENTIAL: Ruling(BatchState.CREDENTIAL, Fate.DUE_AGAIN, Event.CREDENTIAL),
    Verdict.SENDER_REFUSED: Ruling(BatchState.REFUSED, Fate.SORT_SENDERS, Event.FORBIDDEN),
    Verdict.REFUSED: Ruling(BatchState.REFUSED, Fate.SORT_LANES, Event.REFUSED),
    Verdict.IN_PROGRESS: Ruling(BatchState.UNKNOWN, Fate.BOUND, Event.ANSWERED),
    Verdict.KEY_CONFLICT: Ruling(BatchState.AMBIGUOUS, Fate.AMBIGUOUS, Event.ANSWERED),
    Verdict.NOT_SENT: Ruling(BatchState.NOT_SENT, Fate.BACK_OFF, Event.FAILED),
    Verdict.UNKNOWN: Ruling(BatchState.UNKNOWN, Fate.BOUND, Event.FAILED),
    Verdict.NOT_FOUND: Ruling(BatchState.UNKNOWN, Fate.BOUND, Event.ANSWERED),
}

#: An earlier attempt was unknown, or its worker vanished.
BOUND: dict[Verdict, Ruling] = {
    verdict: Ruling(BatchState.UNKNOWN, Fate.BOUND, ruling.event) for verdict, ruling in FIRST.items()
} | {
    Verdict.ACCEPTED: FIRST[Verdict.ACCEPTED],
    Verdict.KEY_CONFLICT: FIRST[Verdict.KEY_CONFLICT],
}

#: The provider was asked after lease and settle time, and does not have them (those that it has are sent).
NOT_THERE = Ruling(BatchState.NOT_SENT, Fate.BACK_OFF, Event.ANSWERED)

#: No request was made: the worker was held up for too long to send it safely. Nobody's fault, least of all the provider's.
TOO_LATE = Ruling(BatchState.NOT_SENT, Fate.DUE_AGAIN, Event.NONE)
TOO_LATE_BOUND = Ruling(BatchState.UNKNOWN, Fate.BOUND, Event.NONE)

#: The error code of a batch whose answer did not add up; a second one makes it ambiguous.
MISCOUNTED = "miscounted"


def rule(
    verdict: Verdict, *, bound: bool, confirmation: Confirmation, last_error: str = "", settled: bool = False
) -> Ruling:
    """The row of the table. `last_error`: the batch's error code before this attempt. `settled`: lease and settle time of a
    VERIFIABLE provider's batch are over."""
    ruling = (BOUND if bound else FIRST)[verdict]
    if verdict is Verdict.NOT_FOUND and bound and settled:
        return NOT_THERE
    if ruling.fate is not Fate.BOUND:
        return ruling
    twice_miscounted = verdict is Verdict.MISCOUNTED and last_error == MISCOUNTED
    if twice_miscounted or confirmation is Confirmation.AT_MOST_ONCE:
        return Ruling(BatchState.AMBIGUOUS, Fate.AMBIGUOUS, ruling.event)
    return ruling


#: Seconds between two repetitions of a bound batch at most. A login code is worth asking for more often.
_LONGEST_REPLAY = {Rail.TRANSACTIONAL: 8.0, Rail.MARKETING: 60.0}


def replay_delay(rail: Rail, attempts: int) -> float:
    """Seconds until a bound batch is repeated: 1 s after the first attempt, then doubling to the rail's longest, jittered."""
    return min(_LONGEST_REPLAY[rail], 2.0 ** min(attempts - 1, 6)) * random.uniform(0.8, 1.2)  # noqa: S311


def back_off(attempts: int, longest: float, chance: float) -> float:
    """Seconds until a send is tried again that did not leave the machine: full jitter up to 2, 4, 8 … `longest` s.

    `attempts`: those before the last one; `chance`: 0…1. The floor keeps a send from coming back before its failure is known.
    """
    return max(0.2, chance * min(longest, 2.0 ** min(attempts + 1, 20)))
