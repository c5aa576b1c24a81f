"""The faults that are active now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from devtools.sandbox.errors import Refusal
from devtools.sandbox.fault_kinds import COMMON, KINDS, Phase
from devtools.sandbox.limits import Clock


class FaultError(ValueError):
    """A fault that cannot be set. The message is for the one who asked, and says what could be."""


@dataclass(slots=True)
class Fault:
    """One active fault. `left` and `until` are None where it has no such limit."""

    id: int
    kind: str
    params: dict[str, Any]
    left: int | None
    until: float | None
    probability: float
    random: Random = field(repr=False)
    hits: int = 0

    @property
    def phase(self) -> Phase:
        return KINDS[self.kind].phase

    def refusal(self, default: Refusal) -> Refusal:
        """`default`, with the name and message that the fault was given."""
        return replace(default, **{k: self.params[k] for k in ("name", "message") if k in self.params})


class Faults:
    """Looked through in the order they were set; the first that strikes is the one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._active: list[Fault] = []
        self._next_id = 1

    def add(self, specs: Any) -> list[int]:
        """Adds one fault or a list of them, all or none. Returns their ids. Raises FaultError."""
        checked = [_checked(spec) for spec in (specs if isinstance(specs, list) else [specs])]
        return [self._add(kind, params) for kind, params in checked]

    def _add(self, kind: str, params: dict[str, Any]) -> int:
        seconds = params.pop("seconds", None)
        fault = Fault(
            id=self._next_id,
            kind=kind,
            left=params.pop("count", None),
            until=None if seconds is None else self._clock() + seconds,
            probability=params.pop("probability", 1.0),
            random=Random(params.pop("seed", None)),
            params=params,
        )
        self._next_id += 1
        self._active.append(fault)
        return fault.id

    def clear(self, fault_id: int | None = None) -> int:
        """Removes all, or one; returns how many."""
        kept = [] if fault_id is None else [fault for fault in self._active if fault.id != fault_id]
        removed = len(self._active) - len(kept)
        self._active = kept
        return removed

    def describe(self) -> list[dict[str, Any]]:
        self._expire()
        now = self._clock()
        return [
            {
                "id": fault.id,
                "fault": fault.kind,
                **fault.params,
                "probability": fault.probability,
                "count_left": fault.left,
                "seconds_left": None if fault.until is None else round(fault.until - now, 3),
                "hits": fault.hits,
            }
            for fault in self._active
        ]

    def pick(self, phase: Phase, matches: Callable[[Fault], bool] = lambda _: True) -> Fault | None:
        """The fault that strikes this request in this phase, if any. Only a strike uses up a count."""
        if not self._active:
            return None
        self._expire()
        for fault in self._active:
            if fault.phase is not phase or not matches(fault):
                continue
            if fault.probability < 1 and fault.random.random() >= fault.probability:
                continue
            fault.hits += 1
            if fault.left is not None:
                fault.left -= 1
            return fault
        return None

    def _expire(self) -> None:
        now = self._clock()
        self._active = [f for f in self._active if f.left != 0 and (f.until is None or now < f.until)]


def _checked(spec: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(spec, dict):
        raise FaultError('A fault is an object such as {"fault": "503", "count": 3}, or a list of such objects.')
    params = dict(spec)
    kind = params.pop("fault", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise FaultError(f"Unknown fault {kind!r}. Known: {', '.join(sorted(KINDS))}.")
    known = {**COMMON, **KINDS[kind].params}
    for name, value in params.items():
        if name not in known:
            raise FaultError(f"Fault {kind} has no field {name!r}. It has: {', '.join(sorted(known))}.")
        if not known[name].check(value):
            raise FaultError(f"Field {name} of fault {kind} must be {known[name].want}.")
    for name, param in known.items():
        if param.required and name not in params:
            raise FaultError(f"Fault {kind} needs the field {name}: {param.want}.")
    return kind, params
