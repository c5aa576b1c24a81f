"""What is counted where it happens. One call a batch, from where its answer is recorded."""

from __future__ import annotations

from collections.abc import Collection

from core.telemetry.counters import Counter, Histogram
from messaging.domain.lifecycle import BatchState
from messaging.domain.rails import Channel, Rail

SENDS = Counter(
    "notif_sends_total",
    "Sends in answered requests, by what came of them: accepted, failed (refused by name), or the state of their batch. A send"
    " that was requested twice counts twice.",
    ("channel", "rail", "provider", "outcome"),
)
LATENCY = Histogram(
    "notif_accept_latency_seconds",
    "From submit to acceptance; of a scheduled send, its schedule included.",
    ("channel", "rail"),
    (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 300, 1800, 7200, 43200),
)
BATCH_SIZE = Histogram(
    "notif_batch_size",
    "Sends in a request.",
    ("provider", "rail"),
    (1, 2, 5, 10, 20, 50, 80, 95, 99, 100, 200, 500, 1000),
)
RESPONSES = Counter(
    "notif_provider_responses_total",
    "Answers by HTTP status, or by why there was none.",
    ("provider", "code"),
)
DEPTH_UNREADABLE = Counter(
    "notif_depth_unreadable_total",
    "Times that a marketing worker lost sight of the transactional rail's depth and stood still.",
    ("channel",),
)
ALL = (SENDS, LATENCY, BATCH_SIZE, RESPONSES, DEPTH_UNREADABLE)


def count_batch(
    channel: Channel,
    rail: Rail,
    provider: str,
    *,
    items: int,
    response: str,
    state: BatchState,
    accepted: Collection[float],
    failed: int,
    fenced_out: bool,
) -> None:
    """A request was made and what came of it is recorded. `response`: its HTTP status, or why there was none. `accepted`: seconds
    from submit to acceptance, of each; `failed`: items that were refused by name."""
    RESPONSES.add(provider, response)
    BATCH_SIZE.observe(provider, rail, seen=[items])
    if accepted:
        SENDS.add(channel, rail, provider, "accepted", by=len(accepted))
        LATENCY.observe(channel, rail, seen=list(accepted))
    if fenced_out:
        return
    if state in (BatchState.ACCEPTED, BatchState.PARTIAL):
        SENDS.add(channel, rail, provider, "failed", by=failed)
    else:
        SENDS.add(channel, rail, provider, state, by=items)
