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


class Disposition(Enum):
    """What becomes of the sends of a batch."""

    SENT = auto()  # those that the answer names as errors fail
    DUE_AGAIN = auto()  # queued at once, no attempt counted
    BACK_OFF = auto()  # scheduled; an attempt, unless the circuit is open
    ISOLATE_LANES = auto()  # wait, no attempt counted: the lane of the culprit is looked for, then the culprit in it
    ISOLATE_SENDERS = auto()  # wait, no attempt counted: the refused sender domain is looked for, and held
    BOUND = auto()  # stay with the batch, which is repeated later
    AMBIGUOUS = auto()


#: Fates after which the sends are not with the provider: their tenants get their tokens back.
RETURNED = frozenset(
    {Disposition.DUE_AGAIN, Disposition.BACK_OFF, Disposition.ISOLATE_LANES, Disposition.ISOLATE_SENDERS}
)


@dataclass(frozen=True, slots=True)
class Outcome:
    state: BatchState
    disposition: Disposition
    event: Event  # what the governor hears


#: Nothing of this batch was ever unknown.
FIRST: dict[Verdict, Outcome] = {
    Verdict.ACCEPTED: Outcome(BatchState.ACCEPTED, Disposition.SENT, Event.ACCEPTED),
    Verdict.MISCOUNTED: Outcome(BatchState.UNKNOWN, Disposition.BOUND, Event.ANSWERED),
    Verdict.RATE_LIMITED: Outcome(BatchState.RATE_LIMITED, Disposition.DUE_AGAIN, Event.RATE_LIMITED),
    Verdict.QUOTA: Outcome(BatchState.RATE_LIMITED, Disposition.DUE_AGAIN, Event.QUOTA),
    Verdict.CREDENTIAL: Outcome(BatchState.CREDENTIAL, Disposition.DUE_AGAIN, Event.CREDENTIAL),
    Verdict.SENDER_REFUSED: Outcome(BatchState.REFUSED, Disposition.ISOLATE_SENDERS, Event.FORBIDDEN),
    Verdict.REFUSED: Outcome(BatchState.REFUSED, Disposition.ISOLATE_LANES, Event.REFUSED),
    Verdict.IN_PROGRESS: Outcome(BatchState.UNKNOWN, Disposition.BOUND, Event.ANSWERED),
    Verdict.KEY_CONFLICT: Outcome(BatchState.AMBIGUOUS, Disposition.AMBIGUOUS, Event.ANSWERED),
    Verdict.NOT_SENT: Outcome(BatchState.NOT_SENT, Disposition.BACK_OFF, Event.FAILED),
    Verdict.UNKNOWN: Outcome(BatchState.UNKNOWN, Disposition.BOUND, Event.FAILED),
    Verdict.NOT_FOUND: Outcome(BatchState.UNKNOWN, Disposition.BOUND, Event.ANSWERED),
}

#: An earlier attempt was unknown, or its worker vanished.
BOUND: dict[Verdict, Outcome] = {
    verdict: Outcome(BatchState.UNKNOWN, Disposition.BOUND, outcome.event) for verdict, outcome in FIRST.items()
} | {
    Verdict.ACCEPTED: FIRST[Verdict.ACCEPTED],
    Verdict.KEY_CONFLICT: FIRST[Verdict.KEY_CONFLICT],
}

#: The provider was asked after lease and settle time, and does not have them (those that it has are sent).
NOT_THERE = Outcome(BatchState.NOT_SENT, Disposition.BACK_OFF, Event.ANSWERED)

#: No request was made: the worker was held up for too long to send it safely. Nobody's fault, least of all the provider's.
TOO_LATE = Outcome(BatchState.NOT_SENT, Disposition.DUE_AGAIN, Event.NONE)
TOO_LATE_BOUND = Outcome(BatchState.UNKNOWN, Disposition.BOUND, Event.NONE)

#: The error code of a batch whose answer did not add up; a second one makes it ambiguous.
MISCOUNTED = "miscounted"


def rule(
    verdict: Verdict, *, bound: bool, confirmation: Confirmation, last_error: str = "", settled: bool = False
) -> Outcome:
    """The row of the table. `last_error`: the batch's error code before this attempt. `settled`: lease and settle time of a
    VERIFIABLE provider's batch are over."""
    outcome = (BOUND if bound else FIRST)[verdict]
    if verdict is Verdict.NOT_FOUND and bound and settled:
        return NOT_THERE
    if outcome.disposition is not Disposition.BOUND:
        return outcome
    twice_miscounted = verdict is Verdict.MISCOUNTED and last_error == MISCOUNTED
    if twice_miscounted or confirmation is Confirmation.AT_MOST_ONCE:
        return Outcome(BatchState.AMBIGUOUS, Disposition.AMBIGUOUS, outcome.event)
    return outcome


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
