"""What follows from what was found. Pure: no clock, no database, no process. Units: seconds, requests, e-mails."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devtools.demo.figures import percentile

#: Share of a run that is left out at both ends where a steady rate is asked for.
_EDGE = 0.05


@dataclass(frozen=True, slots=True)
class Spread:
    count: int
    p50: float
    p95: float
    p99: float


def spread(values: Iterable[float]) -> Spread:
    """Raises ValueError if there are none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("nothing was measured")
    p50, p95, p99 = (percentile(ordered, percent) for percent in (50, 95, 99))
    return Spread(len(ordered), p50, p95, p99)


def overall_rate(moments: Sequence[float], since: float) -> float:
    """Events per second from `since` to the last of them."""
    return len(moments) / (max(moments) - since) if moments and max(moments) > since else 0.0


def steady_rate(moments: Sequence[float]) -> float:
    """Events per second without the first and the last twentieth of them: without start and end of a run."""
    ordered = sorted(moments)
    first = int(len(ordered) * _EDGE)
    last = len(ordered) - 1 - first
    took = ordered[last] - ordered[first] if last > first else 0.0
    return (last - first) / took if took > 0 else 0.0


def physical_minimum(requests: int, capacity: float, rate: float) -> float:
    """Seconds that so many requests take at least: what the full bucket holds goes at once, the rest at `rate`."""
    return max(0.0, requests - capacity) / rate


def per_thousand(part: int, whole: int) -> float:
    return part * 1000 / whole if whole else 0.0


def use_of_limit(per_second: Iterable[Sequence[int]], limit: float, start: float, end: float) -> float:
    """Share of the limit that was used in the whole seconds between two moments. `per_second`: [epoch second, requests,
    …]; a second that is missing had none. Raises ValueError if no whole second lies between them."""
    first, last = math.ceil(start), math.floor(end)
    if last <= first:
        raise ValueError("no whole second lies between start and end")
    return sum(entry[1] for entry in per_second if first <= entry[0] < last) / (limit * (last - first))


def jain(counts: Sequence[float]) -> float:
    """Jain's index: 1 if all got the same, 1 ÷ n if one got everything. 1 where there is nobody, or nothing was given."""
    total, squares = sum(counts), sum(count * count for count in counts)
    return total * total / (len(counts) * squares) if squares else 1.0


def fairness_windows(
    accepted: Mapping[str, Sequence[float]],
    until: Mapping[str, float],
    *,
    start: float,
    end: float,
    window: float = 10.0,
    step: float = 1.0,
) -> Iterator[float]:
    """Jain's index of each window of `window` seconds, one every `step`, between two moments.

    `accepted`: when each of a tenant's e-mails was accepted, ascending. `until`: when its backlog ran out (infinite: it did
    not). A tenant counts in a window that it was backlogged through to the end.
    """
    for number in itertools.count():
        low = start + number * step
        high = low + window
        if high > end:
            return
        counts = [
            bisect_left(moments, high) - bisect_left(moments, low)
            for tenant, moments in accepted.items()
            if until[tenant] >= high
        ]
        if len(counts) > 1:
            yield jain(counts)


def ran_out(accepted: Mapping[str, Sequence[float]], planned: Mapping[str, int]) -> dict[str, float]:
    """When each tenant's backlog ran out, for `fairness_windows`."""
    return {
        tenant: math.inf if len(moments) < planned[tenant] else (moments[-1] if moments else -math.inf)
        for tenant, moments in accepted.items()
    }


def backlogs(tenants: int, smallest: int, largest: int) -> list[int]:
    """Very different backlogs: as many steps of the same ratio from the smallest to the largest."""
    if tenants == 1:
        return [largest]
    ratio = (largest / smallest) ** (1 / (tenants - 1))
    return [round(smallest * ratio**i) for i in range(tenants)]
