"""What each profile must reach, in one table. A condition that nothing was measured for is a bug, not a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from devtools.bench import goals
from devtools.bench.goals import Figure, Goal, at_least, at_most


@dataclass(frozen=True, slots=True)
class Condition:
    """A figure and its goal; without one it is only told. `always`: holds for small numbers on a busy machine too."""

    figure: str
    unit: str = ""
    goal: Goal | None = None
    always: bool = False


def _zero(figure: str) -> Condition:
    return Condition(figure, "", at_most(0), always=True)


#: Of every profile.
COUNTS = (
    _zero("lost"),
    _zero("doubled"),
    _zero("accepted, not recorded"),
    _zero("unknown at the provider"),
    _zero("failed"),
    _zero("refused"),
    _zero("on the wrong rail"),
    _zero("requests past the governor"),
    _zero("still open"),
    _zero("k6 thresholds crossed"),
)
#: Not `always`: the provider counts when a request arrives, and a machine that is busy with something else delays it on its way.
_NO_429 = Condition("429s", "", at_most(0))
_BURST_MANY = Condition("burst in one submit_many, slowest", "ms", at_most(1_000))
_BURST_HTTP = Condition("burst over single HTTP calls, slowest", "ms", at_most(2_000))
_BURSTS = (_BURST_MANY, _BURST_HTTP)
_CODES = tuple(
    Condition(f"codes of {tenant}, {name}", "ms", goal)
    for tenant in ("A", "B")
    for name, goal in (("p50", None), ("p95", goals.OTP_P95_MS), ("p99", goals.OTP_P99_MS))
)

CONDITIONS: Mapping[str, tuple[Condition, ...]] = {
    "blast-vs-otp": (
        Condition("backlog at the start", "e-mails", at_least(1_000_000)),
        Condition("backlog at the end", "e-mails", at_least(1), always=True),
        Condition("measured", "s", at_least(120)),
        *_CODES,
        *_BURSTS,
        Condition("the blast's share of what codes left", "%", at_least(90)),
        Condition("mean fill", "of 100", goals.FILL),
        _NO_429,
    ),
    "otp-burst": (*_BURSTS, Condition("requests of a submit_many", "", at_most(4)), _NO_429),
    "small-tenants": (Condition("time ÷ physical minimum", "", goals.SMALL_TENANTS), Condition("requests"), _NO_429),
    "rate-storm": (
        Condition("429s", "", at_least(1), always=True),
        _zero("attempts counted for a 429"),
        Condition("full rate again after", "s", at_most(5)),
    ),
    "newcomer": (Condition("longest wait for the first batch", "s", goals.NEWCOMER), _NO_429),
    "product-flood": (*_CODES, Condition("mean fill", "of 100"), _NO_429),
}
PROFILES = tuple(CONDITIONS)


def judged(profile: str, measured: Mapping[str, float], ran: str, *, short: bool) -> Iterator[Figure]:
    """The profile's figures in the table's order. `short`: only what holds always has a goal. Raises ValueError if
    something has no value, or a value has no place."""
    conditions = (*CONDITIONS[profile], *COUNTS)
    if unlike := {condition.figure for condition in conditions} ^ measured.keys():
        raise ValueError(f"{profile}: {', '.join(sorted(unlike))}: not measured, or not in the table")
    for c in conditions:
        goal = c.goal if c.always or not short else None
        yield Figure(profile, c.figure, measured[c.figure], c.unit, ran, goal)


def told(figures: list[Figure]) -> list[Figure]:
    """Without those that must be 0 and are: they would be half of the table."""
    return [f for f in figures if f.value or f.goal is None or f.goal.value or not f.goal.met(f.value)]


def missed(figures: list[Figure]) -> list[Figure]:
    return [figure for figure in figures if figure.goal and not figure.goal.met(figure.value)]
