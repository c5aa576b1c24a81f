"""Which fault begins when, and for how long: a pure function of the seed. Seconds from the begin of the load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

#: A batch's lease, and more: who is frozen for so long finds that another worker has taken its batch over.
FROZEN_SECONDS = 34.0
FROZEN = "worker-frozen"
#: Frozen in the midst of a transaction, for longer than the server lets one stand still.
IN_TRANSACTION_SECONDS = 7.0
IN_TRANSACTION = ("frozen-in-record", "frozen-in-claim")
#: Of a full run, for each of these, at its end: whatever keeps codes waiting then, it is they.
_ALONE_SECONDS = 9.0
#: Before: an open circuit takes a while to close. Behind: for freezing and for thawing.
_BEFORE_SECONDS, _BEHIND_SECONDS = 5.0, 8.0
#: Draws until one is undisturbed; in a short run none is.
_TRIES = 1_000
#: A run of so many minutes has each kind as often, and for as long, as the table says.
FULL_MINUTES = 5.0
#: The first fault, from the begin of the load: by then something flows.
FIRST = 3.0
#: Of all faults of a full run, those that begin while the one before still lasts.
_OVERLAPPING = 0.25
#: The shortest that a fault is made in a short run.
_LEAST_SECONDS = 0.6


@dataclass(frozen=True, slots=True)
class Kind:
    """`seconds`, and how often, in a full run. `stops`: while it lasts, sends may stop flowing; the others are things in spite
    of which they must go on. `disturbs` what a frozen worker is there to show (`plan`)."""

    name: str
    about: str
    seconds: float
    times: int = 1
    stops: bool = True
    disturbs: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        Kind("worker-killed", "kill −9 of a worker, started again a moment later", 2, 4),
        Kind("worker-stopped", "SIGTERM to a worker's process group, started again when it has ended", 3, 2),
        Kind("clock-killed", "kill −9 of the clock", 2, 2),
        Kind("web-killed", "kill −9 of web", 2, 2),
        Kind("redis-emptied", "Redis killed and started again, empty", 2, 2),
        Kind("postgres-crashed", "PostgreSQL killed and started again", 1, disturbs=True),
        Kind("postgres-restarted", "PostgreSQL restarted (fast: it cuts all connections)", 1, disturbs=True),
        Kind("provider-500", "500, nothing taken", 4, disturbs=True),
        Kind("provider-500-taken", "500, and taken all the same", 3, disturbs=True),
        Kind("provider-hangs", "no answer, nothing taken", 4, disturbs=True),
        Kind("provider-hangs-taken", "no answer, and taken all the same", 3, disturbs=True),
        Kind("answers-cut", "taken; half of the answer arrives", 4, disturbs=True),
        Kind("dropped-after", "taken; the connection closes without a byte", 3, disturbs=True),
        Kind("reset-after", "taken; the connection is reset", 3, disturbs=True),
        Kind("dropped-before", "the connection closes, nothing taken", 3, disturbs=True),
        Kind("429", "429 with Retry-After: 2", 5),
        Kind("429-bare", "429 without Retry-After", 4),
        Kind("401", "the key is refused", 5, disturbs=True),
        Kind("outage", "nothing listens, then 500 to everything", 36, disturbs=True),
        Kind("tickets-doubled", "copies of tickets by LPUSH", 4),
        Kind("tickets-deleted", "all tickets deleted, again and again", 4),
        Kind("two-clocks", "a second clock", 30, stops=False),
        Kind("snapshot", "a snapshot held open in PostgreSQL", 60, stops=False),
        Kind(
            "worker-frozen", "SIGSTOP for longer than the lease, with requests in flight", FROZEN_SECONDS, stops=False
        ),
        Kind(
            "frozen-in-record", "SIGSTOP in the transaction that records an answer", IN_TRANSACTION_SECONDS, stops=False
        ),
        Kind("frozen-in-claim", "SIGSTOP in the transaction of a claim", IN_TRANSACTION_SECONDS, stops=False),
    )
}


@dataclass(frozen=True, slots=True)
class Planned:
    at: float
    kind: Kind
    seconds: float


def plan(seed: int, minutes: float, window: float) -> list[Planned]:
    """All kinds at least once; the last one ends about `window` seconds after the begin of the load.

    A frozen worker shall have requests in flight, wake up with its connections whole, and find that another worker has taken
    its batch over: where there is room for it, nothing cuts those connections meanwhile, or puts the provider out of use. Those
    that are frozen in a transaction come last and alone: they show that codes of others do not notice.
    """
    random = Random(seed)
    alone = _ALONE_SECONDS if minutes >= FULL_MINUTES else 0.0
    for _ in range(_TRIES):
        planned = _draw(random, minutes, window - alone * len(IN_TRANSACTION))
        (frozen,) = (one for one in planned if one.kind.name == FROZEN)
        if not _disturbed(frozen, planned):
            break
    for place, name in enumerate(random.sample(IN_TRANSACTION, len(IN_TRANSACTION))):
        last = window - IN_TRANSACTION_SECONDS
        at = last - alone * place if alone else random.uniform(FIRST, last)
        planned.append(Planned(at, KINDS[name], IN_TRANSACTION_SECONDS))
    return sorted(planned, key=lambda one: one.at)


def _draw(random: Random, minutes: float, window: float) -> list[Planned]:
    scale = min(1.0, minutes / FULL_MINUTES)
    stopping = [
        (kind, max(_LEAST_SECONDS, kind.seconds * scale) * random.uniform(0.7, 1.3))
        for kind in KINDS.values()
        if kind.stops
        for _ in range(max(1, round(kind.times * minutes / FULL_MINUTES)))
    ]
    random.shuffle(stopping)
    found = list(_in_turn(stopping, window - FIRST, random))
    for kind in KINDS.values():
        if not kind.stops and kind.name not in IN_TRANSACTION:
            seconds = kind.seconds if kind.name == FROZEN else kind.seconds * scale
            found.append(Planned(FIRST + random.uniform(0, max(0.0, window - FIRST - seconds)), kind, seconds))
    return sorted(found, key=lambda planned: planned.at)


def _disturbed(frozen: Planned, planned: Sequence[Planned]) -> bool:
    low, high = frozen.at - _BEFORE_SECONDS, frozen.at + frozen.seconds + _BEHIND_SECONDS
    return any(one.at < high and low < one.at + one.seconds for one in planned if one.kind.disturbs)


def _in_turn(faults: Sequence[tuple[Kind, float]], window: float, random: Random) -> Iterator[Planned]:
    """One after the other with pauses between; some, more in a narrow window, begin during the one before."""
    draws = [(random.random(), random.uniform(0.2, 0.8), random.random()) for _ in faults]
    share = _OVERLAPPING
    while True:
        overlaps = [number > 0 and draw[0] < share for number, draw in enumerate(draws)]
        steps = [
            faults[number - 1][1] * draws[number][1] if overlap else (faults[number - 1][1] if number else 0.0)
            for number, overlap in enumerate(overlaps)
        ]
        pause = window - max(at + fault[1] for at, fault in zip(accumulate(steps), faults, strict=True))
        if pause >= 0 or share > 1:
            break
        share += 0.15
    weights = [0.0 if overlap else draw[2] for overlap, draw in zip(overlaps, draws, strict=True)]
    at = FIRST
    for (kind, seconds), step, weight in zip(faults, steps, weights, strict=True):
        at += step + max(0.0, pause) * weight / (sum(weights) or 1)
        yield Planned(at, kind, seconds)
