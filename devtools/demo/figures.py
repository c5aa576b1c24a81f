"""What a run showed, computed from what was found afterwards. Pure: no clock, no database, no process.

Units: seconds, requests, e-mails; moments are seconds since the epoch, all from the ledger's own clock.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from devtools.demo.depth import Depth

#: A provider request holds at most so many e-mails.
MAX_BATCH = 100

#: Not imported from the system under test: what both sides believe is written down twice.
RAIL_OF = {"transactional": "transactional", "product": "transactional", "marketing": "marketing"}


@dataclass(frozen=True, slots=True)
class LedgerSend:
    id: str
    tenant: str
    category: str
    rail: str
    status: str
    of_blast: bool
    created_at: float
    accepted_at: float | None


@dataclass(frozen=True, slots=True)
class LedgerBatch:
    """`attempts`: requests made with it."""

    rail: str
    state: str
    send_ids: tuple[str, ...]
    created_at: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What ledger, governor, provider and callers say.

    `submitted`: ids of OTPs that the API answered 202 to → their tenant. `refused`: what else it answered → how often.
    `at_provider`: every e-mail in the provider's log as (send id, number of its request).
    """

    limit: float  # the provider's, in requests per second
    recipients: int  # rows in the CSV file
    rejected: int  # rows of it that did not become a send
    launched_at: float
    submitted: Mapping[str, str]
    refused: Mapping[str, int]
    post_seconds: Sequence[float]
    sends: Sequence[LedgerSend]
    batches: Sequence[LedgerBatch]
    at_provider: Sequence[tuple[str | None, int]]
    requests: int  # received by the provider
    too_many: int  # of which it answered 429
    tokens: int  # spent by the governor
    timed_out: bool = False
    # Over time, for the report:
    depths: Sequence[Depth] = ()
    accepting: Mapping[int, float] = field(default_factory=dict)  # number of an accepting request → its moment
    too_many_per_second: Sequence[tuple[int, int]] = ()  # (second, 429s in it)


@dataclass(frozen=True, slots=True)
class Latency:
    """Submit → accepted: from the send's `created_at` to its `accepted_at`, in seconds."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Figures:
    otp: Mapping[str, Latency]  # by tenant, and "all"
    post: Latency | None  # the caller's view: from the moment the OTP was due to the 202
    recipients: int
    blast_sent: int
    elapsed: float  # launch → last blast e-mail accepted
    otp_requests: int  # in that time
    blast_requests: int  # accepted batches of the blast
    left_over: float  # requests that the OTPs left to the blast: limit × elapsed − OTP requests
    share: float  # blast requests ÷ left-over
    emails_per_second: float
    left_over_emails_per_second: float
    fill: float  # mean e-mails per batch of the blast
    too_many: int
    requests: int
    tokens: int
    lost: int
    unrecorded: int  # the provider has it, the ledger does not know
    doubled: int
    strangers: int  # at the provider, and no send of this run
    refused: int
    failed: int  # sends that ended as anything but sent
    wrong_rail: int
    otp_submitted: int
    timed_out: bool
    refusals: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a run must reach."""

    otp_p99: float = 1.0
    share: float = 0.8


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest value that at least `percent` of all do not exceed. `ordered` must not be empty."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def latency(values: Iterable[float]) -> Latency | None:
    """None if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p95, p99 = (percentile(ordered, percent) for percent in (50, 95, 99))
    return Latency(len(ordered), p50, p95, p99, ordered[-1])


def compute(evidence: Evidence) -> Figures:
    sends = {send.id: send for send in evidence.sends}
    # What was promised: every OTP that got a 202, and every send that the planner wrote.
    promised = set(evidence.submitted) | {send.id for send in evidence.sends}
    times = Counter(send_id for send_id, _ in evidence.at_provider)
    blast_moments = [s.accepted_at for s in evidence.sends if s.of_blast and s.accepted_at is not None]
    ended_at = max(blast_moments, default=evidence.launched_at)
    elapsed = ended_at - evidence.launched_at
    blast_batches = [b for b in evidence.batches if _is_blast(b, sends) and b.state.startswith("accepted")]
    otp_requests = sum(
        batch.attempts
        for batch in evidence.batches
        if not _is_blast(batch, sends) and evidence.launched_at <= batch.created_at <= ended_at
    )
    left_over = max(0.0, evidence.limit * elapsed - otp_requests)
    blast_mails = sum(len(batch.send_ids) for batch in blast_batches)
    return Figures(
        otp=_otp_latencies(evidence, sends),
        post=latency(evidence.post_seconds),
        recipients=evidence.recipients,
        blast_sent=len(blast_moments),
        elapsed=elapsed,
        otp_requests=otp_requests,
        blast_requests=len(blast_batches),
        left_over=left_over,
        share=len(blast_batches) / left_over if left_over else 0.0,
        emails_per_second=len(blast_moments) / elapsed if elapsed else 0.0,
        left_over_emails_per_second=left_over * MAX_BATCH / elapsed if elapsed else 0.0,
        fill=blast_mails / len(blast_batches) if blast_batches else 0.0,
        too_many=evidence.too_many,
        requests=evidence.requests,
        tokens=evidence.tokens,
        lost=sum(send_id not in times for send_id in promised),
        unrecorded=sum(send_id in times and sends[send_id].status != "sent" for send_id in promised & sends.keys()),
        doubled=sum(n - 1 for send_id, n in times.items() if send_id is not None and n > 1),
        strangers=sum(n for send_id, n in times.items() if send_id is None or send_id not in promised),
        refused=evidence.rejected + sum(evidence.refused.values()),
        failed=sum(send.status not in ("sent", "queued", "sending", "scheduled") for send in evidence.sends),
        wrong_rail=wrong_rail(evidence, sends),
        otp_submitted=len(evidence.submitted),
        timed_out=evidence.timed_out,
        refusals=dict(evidence.refused),
    )


def wrong_rail(evidence: Evidence, sends: Mapping[str, LedgerSend]) -> int:
    """Sends on a rail that is not their category's: by their own row, by the batch that carried them, or by the company
    that they had in a provider request."""
    wrong = {send.id for send in evidence.sends if RAIL_OF[send.category] != send.rail}
    for batch in evidence.batches:
        wrong.update(i for i in batch.send_ids if i in sends and RAIL_OF[sends[i].category] != batch.rail)
    by_request: defaultdict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for send_id, request in evidence.at_provider:
        if send_id is not None and send_id in sends:
            by_request[request][RAIL_OF[sends[send_id].category]].append(send_id)
    for rails in by_request.values():
        if len(rails) > 1:
            wrong.update(rails["marketing"])
    return len(wrong)


def failures(figures: Figures, bounds: Bounds) -> list[str]:
    """Each condition that is not met, in plain words. Empty: all are."""
    everybody = figures.otp.get("all")
    said = [
        (figures.timed_out, "The run took too long and was cut off: sends were still waiting."),
        (figures.lost, f"{_n(figures.lost, 'send was', 'sends were')} lost: submitted, and never at the provider."),
        (
            figures.unrecorded,
            f"{_n(figures.unrecorded, 'send is', 'sends are')} with the provider, and the ledger does not say so.",
        ),
        (figures.doubled, f"{_n(figures.doubled, 'e-mail was', 'e-mails were')} sent twice."),
        (figures.strangers, f"The provider got {_n(figures.strangers, 'e-mail', 'e-mails')} that nobody submitted."),
        (figures.refused, f"{_n(figures.refused, 'send was', 'sends were')} refused without cause{_named(figures)}."),
        (figures.failed, f"{_n(figures.failed, 'send', 'sends')} failed, and the provider did nothing to cause it."),
        (figures.wrong_rail, f"{_n(figures.wrong_rail, 'send', 'sends')} went out on the wrong rail."),
        (
            figures.tokens < figures.requests,
            f"The provider got {figures.requests} requests for {figures.tokens} tokens: something passed by the governor.",
        ),
        (everybody is None, "No login code was accepted, so there is nothing to measure."),
        (
            everybody is not None and everybody.p99 > bounds.otp_p99,
            f"Login codes were slow: p99 {everybody.p99 if everybody else 0:.2f} s, more than {bounds.otp_p99:g} s.",
        ),
        (
            figures.share < bounds.share,
            f"The blast got {figures.share:.1%} of what the login codes left over, less than {bounds.share:.0%}.",
        ),
    ]
    return [sentence for failed, sentence in said if failed]


def _is_blast(batch: LedgerBatch, sends: Mapping[str, LedgerSend]) -> bool:
    return any(send_id in sends and sends[send_id].of_blast for send_id in batch.send_ids)


def _otp_latencies(evidence: Evidence, sends: Mapping[str, LedgerSend]) -> dict[str, Latency]:
    by_tenant: defaultdict[str, list[float]] = defaultdict(list)
    for send_id, tenant in evidence.submitted.items():
        send = sends.get(send_id)
        if send is not None and send.accepted_at is not None:
            by_tenant[tenant].append(send.accepted_at - send.created_at)
            by_tenant["all"].append(send.accepted_at - send.created_at)
    return {name: found for name in sorted(by_tenant) if (found := latency(by_tenant[name]))}


def _n(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _named(figures: Figures) -> str:
    return (
        f" ({', '.join(f'{what} × {n}' for what, n in sorted(figures.refusals.items()))})" if figures.refusals else ""
    )
