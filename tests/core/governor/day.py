"""Both rails of a provider under a clock that jumps from one question to the next: what a day of traffic comes to, in counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from core.governor.client import Bucket, Decision, Limits, Want
from tests.core.governor.calls import Acquire
from tests.core.governor.model import Model

#: When it begins.
START = 1_790_000_000.0
#: Who waits for a second and more looks again by then, as workers do.
LONGEST_WAIT = 2.0


@dataclass
class Asker:
    """The leader of a rail: asks for what it has, waits for as long as it is told, asks again. Woken at `wake`."""

    rail: str
    limits: Limits
    wants: Callable[[float], tuple[Want, ...]]
    replay: bool = False
    wake: Iterable[float] = ()
    grants: list[tuple[float, Decision, tuple[Want, ...]]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    at: float = 0.0

    def ask(self, model: Model, grant: str, now: float) -> None:
        wants = () if self.replay else self.wants(now)
        if not wants and not self.replay:
            self.at = now + LONGEST_WAIT
            return
        call = Acquire(grant, grant, self.rail, self.limits, wants, replay=self.replay, retry=self.replay)
        decision = model.acquire(call, now)
        if decision.granted:
            self.grants.append((now, decision, wants))
        self.reasons[decision.reason] += 1
        self.at = now + min(decision.wait, LONGEST_WAIT) + 1e-6

    def sends(self, tenant: int, priority: int | None = None) -> int:
        return sum(
            share
            for _, decision, wants in self.grants
            for want, share in zip(wants, decision.shares, strict=True)
            if want.tenant == tenant and priority in (None, want.priority)
        )


def spend(seconds: float, *askers: Asker) -> Model:
    """`seconds` of them all, first come first served."""
    model = Model()
    wakes = sorted(((at, asker) for asker in askers for at in asker.wake), key=lambda wake: wake[0])
    for asker in askers:
        asker.at = START
    number = 0
    while True:
        asker = min(askers, key=lambda one: one.at)
        if wakes and wakes[0][0] <= asker.at:
            now, asker = wakes.pop(0)
        else:
            now = asker.at
        if now > START + seconds:
            return model
        number += 1
        asker.ask(model, f"grant-{number}", now)


def half(limits: Limits, max_batch: int = 100) -> Bucket:
    """What a tenant may use of the transactional rail unless told otherwise."""
    refill = 0.5 * limits.request.refill * max_batch
    return Bucket(max(refill, max_batch), refill, rail="transactional")
