"""What the design asks for, and figures beside it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """At least (or, with `most`, at most) `value`."""

    value: float
    most: bool = False

    def met(self, measured: float) -> bool:
        return measured <= self.value if self.most else measured >= self.value

    def miss(self, measured: float) -> float:
        """By which share of the goal it is missed; 0 if it is met. Of a goal of 0 there is no share: infinite."""
        if self.met(measured):
            return 0.0
        return abs(measured - self.value) / self.value if self.value else math.inf


def at_least(value: float) -> Goal:
    return Goal(value)


def at_most(value: float) -> Goal:
    return Goal(value, most=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: of which section, what it is, and what ran for it. `unit` may be empty (a ratio)."""

    section: str
    name: str
    value: float
    unit: str
    ran: str
    goal: Goal | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        goal = asdict(self.goal) | {"met": self.goal.met(self.value)} if self.goal else None
        return {
            "section": self.section,
            "name": self.name,
            "value": round(self.value, 6),
            "unit": self.unit,
            "ran": self.ran,
            "goal": goal,
            **self.more,
        }


ENGINE = at_least(10_000)
CLAIM_MS = at_most(10)
PLANNING = at_least(30_000)
PLANNING_MIB = at_most(200)
SMALL_TENANTS = at_most(1.3)
PICKUP_P50_MS, PICKUP_P95_MS = at_most(10), at_most(20)
USE = at_least(97)
TOO_MANY = at_most(1)
OTP_P95_MS, OTP_P99_MS = at_most(200), at_most(300)
FILL = at_least(95)
JAIN = at_least(0.98)
NEWCOMER = at_most(2)
