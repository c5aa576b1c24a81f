"""The life of a send, of a blast and of a batch: states, and the steps between them that are allowed.

`SEND_STEPS` is the one place where the steps of a send are written down. SQL takes its `status = ANY(…)` conditions
from `sources()`, tests walk the table, the documentation draws it.
"""

from __future__ import annotations

from enum import StrEnum


class SendStatus(StrEnum):
    SCHEDULED = (
        "scheduled"  # waits for `not_before` (its schedule, a back-off), or until its sender domain is held no more
    )
    QUEUED = "queued"  # due now
    SENDING = "sending"  # bound to a batch; immutable until that batch ends
    SENT = "sent"  # the provider accepted it (not: it was delivered)
    FAILED = "failed"  # for good; has a dead letter
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    AMBIGUOUS = "ambiguous"  # nobody can tell whether the provider took it: unresolved, never retried blindly


S = SendStatus

SEND_STEPS: dict[SendStatus, frozenset[SendStatus]] = {
    S.SCHEDULED: frozenset({S.QUEUED, S.EXPIRED, S.CANCELLED}),
    S.QUEUED: frozenset({S.SENDING, S.EXPIRED, S.CANCELLED}),
    S.SENDING: frozenset({S.SENT, S.FAILED, S.AMBIGUOUS, S.QUEUED, S.SCHEDULED, S.EXPIRED, S.CANCELLED}),
    S.AMBIGUOUS: frozenset({S.SENT, S.FAILED, S.QUEUED}),  # a late answer; a redrive that accepts the risk of a double
    S.FAILED: frozenset({S.QUEUED}),  # redrive
    S.SENT: frozenset(),
    S.EXPIRED: frozenset(),
    S.CANCELLED: frozenset(),
}

#: A send with one of these is open: work remains, and its blast is not finished.
OPEN = frozenset({S.SCHEDULED, S.QUEUED, S.SENDING})


def sources(target: SendStatus) -> list[str]:
    """The statuses from which `target` may be reached, for a conditional UPDATE."""
    return sorted(s.value for s, targets in SEND_STEPS.items() if target in targets)


class BlastState(StrEnum):
    PLANNING = "planning"  # recipients are being added; nothing is sent yet
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    FINISHED = "finished"  # no send is open (some may be ambiguous)


BLAST_STEPS: dict[BlastState, frozenset[BlastState]] = {
    BlastState.PLANNING: frozenset({BlastState.RUNNING, BlastState.CANCELLED}),
    BlastState.RUNNING: frozenset({BlastState.PAUSED, BlastState.CANCELLED, BlastState.FINISHED}),
    BlastState.PAUSED: frozenset({BlastState.RUNNING, BlastState.CANCELLED}),
    BlastState.CANCELLED: frozenset(),
    BlastState.FINISHED: frozenset({BlastState.RUNNING}),  # a redrive reopens it
}


class BatchState(StrEnum):
    """`open` states hold sends; the lease of the batch's job is its only timer."""

    PREPARING = "preparing"  # its sends are claimed and being rendered; no request of it has left
    CLAIMED = "claimed"  # committed with its bytes' digest; its request may or may not have left
    UNKNOWN = "unknown"  # an attempt ended without an answer that can be trusted: bound, to be replayed
    ACCEPTED = "accepted"
    PARTIAL = "accepted_in_part"
    RATE_LIMITED = "rate_limited"
    NOT_SENT = "not_sent"
    REFUSED = "refused"  # whole batch refused; its sends went back to wait or failed
    CREDENTIAL = "credential"
    AMBIGUOUS = "ambiguous"


OPEN_BATCH = frozenset({BatchState.PREPARING, BatchState.CLAIMED, BatchState.UNKNOWN})
#: Open, and a request may have left: it is repeated, or asked for, when its lease has run out.
REQUESTED_BATCH = OPEN_BATCH - {BatchState.PREPARING}
