"""What follows from what was found. Pure: no clock, no database, no process. Units: seconds, requests, e-mails; moments are
seconds since the epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from devtools.demo.figures import Evidence, Figures, LedgerSend, latency

_MS = 1_000.0


class NotMeasuredError(RuntimeError):
    """What should have been measured did not happen; the message says what."""


@dataclass(frozen=True, slots=True)
class Burst:
    """The codes of one burst, as the ledger has them: when the first was submitted, when the last was accepted, and the
    longest that one of them took. Infinite where one was never accepted."""

    begin: float
    end: float
    slowest: float


def burst_of(ids: Collection[str], sends: Iterable[LedgerSend]) -> Burst:
    """Raises NotMeasuredError if one of them is not in the ledger, or there are none."""
    found = [send for send in sends if send.id in ids]
    if not found or len(found) != len(set(ids)):
        raise NotMeasuredError(f"{len(found)} of {len(set(ids))} sends of a burst are in the ledger")
    ends = [float("inf") if send.accepted_at is None else send.accepted_at for send in found]
    slowest = max(end - send.created_at for end, send in zip(ends, found, strict=True))
    return Burst(min(send.created_at for send in found), max(ends), slowest)


def codes(
    evidence: Evidence, ids: Collection[str], bursts: Sequence[Burst], tenants: Sequence[str]
) -> dict[str, float]:
    """Submit → accepted in ms of each tenant's codes among `ids` that were not submitted during a burst; `tenants` are A
    and B. Raises NotMeasuredError if one has none."""
    measured: dict[str, float] = {}
    for name, tenant in zip("AB", tenants, strict=True):
        found = latency(
            send.accepted_at - send.created_at
            for send in evidence.sends
            if send.id in ids
            and send.tenant == tenant
            and send.accepted_at is not None
            and not any(burst.begin <= send.created_at <= burst.end for burst in bursts)
        )
        if found is None:
            raise NotMeasuredError(f"no code of {name} was accepted outside the bursts")
        measured |= {
            f"codes of {name}, p50": found.p50 * _MS,
            f"codes of {name}, p95": found.p95 * _MS,
            f"codes of {name}, p99": found.p99 * _MS,
        }
    return measured


def counts(figures: Figures, *, rows_missing: int, still_open: int, failed_scripts: int) -> dict[str, float]:
    """What `conditions.COUNTS` asks for. `rows_missing`: sends that were promised and have no row. `failed_scripts`: runs of k6
    that had a failed or late call."""
    return {
        "lost": figures.lost + rows_missing,
        "doubled": figures.doubled,
        "accepted, not recorded": figures.unrecorded,
        "unknown at the provider": figures.strangers,
        "failed": figures.failed,
        "refused": figures.refused,
        "on the wrong rail": figures.wrong_rail,
        "requests past the governor": max(0, figures.requests - figures.tokens),
        "still open": still_open,
        "k6 thresholds crossed": failed_scripts,
    }


def recovered_after(
    accepted: Sequence[float], end: float, until: float, rate: float, *, window: float = 2.0, share: float = 0.9
) -> float:
    """Seconds from `end` of a storm to the begin of the first `window` with at least `share` of `rate` requests/s.
    `accepted`: when each request was, ascending. If that never came: until the end of what was seen, `until`."""
    need = max(1, round(rate * window * share))
    after = [moment for moment in accepted if moment >= end]
    for first, last in zip(after, after[need - 1 :], strict=False):
        if last - first < window:
            return first - end
    return until - end
