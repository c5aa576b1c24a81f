"""What the run showed. Pure: no clock, no database, no process. Moments are seconds since the epoch."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devtools.chaos.driver import Happened

#: A flow counts as recovered with the first so many seconds in which half of the rate before was accepted.
WINDOW = 3.0
SHARE = 0.5
#: The rate before a fault: of the last so many seconds in which nothing stopped the flow.
BEFORE = 10.0


@dataclass(frozen=True, slots=True)
class LedgerSend:
    id: str
    rail: str
    status: str
    error_code: str | None
    batch: str | None
    batch_state: str | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """One e-mail in the provider's log."""

    send_id: str | None
    to: str
    at: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What clients, ledger and provider say. `promised`: ids of sends that a client was told; `recipients`: whom somebody
    asked to write to, each once."""

    recipients: frozenset[str]
    promised: frozenset[str]
    unanswered: int
    refused: Mapping[str, int]
    answered_differently: int
    sends: Sequence[LedgerSend]
    accepted: Sequence[Accepted]
    dead_letters: int
    open_batches: int
    open_jobs: int
    open_blasts: int
    audit: str = ""  # what the system's own audit complains of


def counts(evidence: Evidence, *, ambiguous_allowed: bool) -> dict[str, int]:
    """What must be 0, each with how often it is not."""
    statuses = {send.id: send.status for send in evidence.sends}
    by_address = Counter(one.to for one in evidence.accepted)
    by_send = Counter(one.send_id for one in evidence.accepted if one.send_id is not None)
    open_statuses = ("scheduled", "queued", "sending")
    unresolved = [send for send in evidence.sends if send.status == "ambiguous"]
    # With nobody to ask, what is ambiguous is told of as such: that it did not arrive is no loss that nobody knows of.
    told = len(unresolved) if ambiguous_allowed else 0
    missing = len(evidence.recipients - by_address.keys())
    untaken = sum(send.id not in by_send for send in unresolved) if ambiguous_allowed else 0
    return {
        "submits without an answer": evidence.unanswered,
        "submits refused": sum(evidence.refused.values()),
        "submits answered in two ways": evidence.answered_differently,
        "promised sends that are not in the ledger": len(evidence.promised - statuses.keys()),
        "sends too few in the ledger": max(0, len(evidence.recipients) - len(statuses)),
        "sends too many in the ledger": max(0, len(statuses) - len(evidence.recipients)),
        "lost: asked for, never accepted": max(0, missing - untaken),
        "doubled sends": sum(count - 1 for count in by_send.values()),
        "doubled addresses": sum(count - 1 for count in by_address.values()),
        "sent, says the ledger, and never accepted": sum(
            status == "sent" and pk not in by_send for pk, status in statuses.items()
        ),
        "accepted, and not sent, says the ledger": sum(
            statuses.get(pk) not in ("sent", "ambiguous" if ambiguous_allowed else "sent", None) for pk in by_send
        ),
        "accepted, and unknown to the ledger": len(by_send.keys() - statuses.keys())
        + sum(one.send_id is None for one in evidence.accepted),
        "accepted for somebody nobody asked to write to": len(by_address.keys() - evidence.recipients),
        "dead letters": evidence.dead_letters,
        "still open": sum(send.status in open_statuses for send in evidence.sends),
        "ended otherwise": sum(send.status not in (*open_statuses, "sent", "ambiguous") for send in evidence.sends),
        "ambiguous": len(unresolved) - told,
        "ambiguous without an ambiguous batch": sum(send.batch_state != "ambiguous" for send in unresolved),
        "batches still open": evidence.open_batches,
        "jobs still open": evidence.open_jobs,
        "blasts not finished": evidence.open_blasts,
        "complaints of manage.py audit": int(bool(evidence.audit)),
    }


@dataclass(frozen=True, slots=True)
class Recovery:
    """`seconds`: rail → from the end of the fault until sends flowed again; None: they did not any more, or there
    was nothing to compare with. `together`: faults that went on at its end, from whose end it is counted."""

    seconds: Mapping[str, float | None]
    together: tuple[str, ...]


def recovery(
    fault: Happened,
    all_faults: Sequence[Happened],
    flow: Mapping[str, Sequence[float]],
    asked: Mapping[str, float],
    since: float,
) -> Recovery:
    """`flow`: when each send of a rail was accepted, ascending. `asked`: how many of a rail's are submitted each second; if more
    flowed before the fault, it was a backlog. `since`: when the load began."""
    stopping = [one for one in all_faults if one.kind.stops]
    end, together = fault.end, []
    for one in sorted(stopping, key=lambda one: one.begin):
        if one is not fault and one.begin <= end < one.end:
            end = one.end
            together.append(one.kind.name)
    return Recovery(
        {
            rail: _recovered_after(moments, end, min(_rate_before(moments, fault.begin, stopping, since), asked[rail]))
            for rail, moments in flow.items()
        },
        tuple(together),
    )


def _rate_before(moments: Sequence[float], begin: float, stopping: Sequence[Happened], since: float) -> float:
    """Accepted sends a second in the last `BEFORE` seconds before `begin` in which no fault stopped the flow."""
    left, high, found = BEFORE, begin, 0
    for one in sorted((one for one in stopping if one.begin < begin), key=lambda one: one.end, reverse=True):
        low = max(min(one.end, high), high - left, since)
        found += _count(moments, low, high)
        left -= high - low
        high = min(high, one.begin)
        if left <= 0:
            break
    low = max(high - max(0.0, left), since)
    if low < high:
        found += _count(moments, low, high)
        left -= high - low
    measured = BEFORE - max(0.0, left)
    return found / measured if measured > 0.5 else 0.0


def _recovered_after(moments: Sequence[float], end: float, rate: float) -> float | None:
    need = round(rate * WINDOW * SHARE)
    if not need:
        return None
    first = bisect_left(moments, end)
    for number in range(first, len(moments) - need + 1):
        if moments[number + need - 1] - moments[number] < WINDOW:
            return moments[number] - end
    return None


def _count(moments: Sequence[float], low: float, high: float) -> int:
    return bisect_left(moments, high) - bisect_left(moments, low)
