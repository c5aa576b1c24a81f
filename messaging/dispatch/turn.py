"""One ticket, one turn: at most one provider request.

    sit → search → (wait) → grant → claim, commit → next ticket → rise → request → settle → record

The seat is left before the request, so that requests overlap; the next ticket is left before that, so that no due send
waits for this request to end.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import redis
from django.conf import settings
from django.db import transaction
from redis.backoff import NoBackoff
from redis.retry import Retry

from core.governor import Event, Governor, Settled
from messaging import outcomes
from messaging.dispatch.answer import Recorded, record_answer
from messaging.dispatch.batch import Bound, Hopeless, claim_batch, reopen_batch
from messaging.dispatch.search import Grant, Later, Memory, memory_of, search
from messaging.dispatch.seat import Seat, seat_of
from messaging.ledger import record
from messaging.ledger.claim import LEASE, BoundSend
from messaging.lifecycle import BatchState
from messaging.providers.base import Adapter, Answer, LimitHint, Verdict
from messaging.providers.registry import adapter_for
from messaging.rails import Channel, Rail
from messaging.tickets import send_ticket

log = logging.getLogger(__name__)

#: Seconds that one request may take in all.
REQUEST_DEADLINE = 10.0
#: Seconds of the lease that are kept for recording the answer.
LEASE_MARGIN = 5.0
#: A longer wait ends the ticket: the clock leaves a new one.
LONGEST_WAIT = 2.0


#: Seconds for connecting to the governor, and for its answer. A turn that fails here costs nothing: the clock re-tickets.
_GOVERNOR_TIMEOUT = 2.0


@functools.cache
def _redis() -> redis.Redis:
    # One repetition, for a connection that Redis closed while it was idle. More would only make a dead Redis slower.
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_connect_timeout=_GOVERNOR_TIMEOUT,
        socket_timeout=_GOVERNOR_TIMEOUT,
        retry=Retry(NoBackoff(), 1),
    )


@functools.cache
def governor_of(provider: str) -> Governor:
    return Governor(_redis(), provider)


@dataclass(frozen=True, slots=True)
class Line:
    """Where a turn happens: one rail of one channel, its provider, and the governor in front of it."""

    adapter: Adapter
    governor: Governor
    channel: Channel
    rail: Rail


def run_ticket(channel: Channel, rail: Rail) -> Recorded | None:
    """Serve one ticket. Returns what was recorded, None if no request was made. Safe to call for nothing."""
    adapter = adapter_for(channel)
    if adapter is None:
        raise AssertionError(f"Bug: a ticket for the channel {channel}, which has no provider")
    line = Line(adapter, governor_of(adapter.name), channel, rail)
    seat = seat_of(adapter.name, rail)
    if not seat.sit():
        return None
    started = time.monotonic()
    prepared: tuple[Grant, Bound] | None = None
    more = False
    try:
        grant = _wait_for_grant(line, seat)
        if grant is None:
            return None
        started = time.monotonic()
        bound = _prepare(line, grant)
        prepared = (grant, bound) if bound else None
        more = grant.more
    finally:
        if seat.rise() or more:
            send_ticket(channel, rail)
    return _request(line, *prepared, started) if prepared else None


def _wait_for_grant(line: Line, seat: Seat) -> Grant | None:
    """Look for work until there is a grant. None: nothing is due, or the wait is long enough to end the ticket."""
    memory: Memory = memory_of(line.adapter.name, line.rail)
    while True:
        seat.look()
        found = search(line.adapter, line.governor, line.channel, line.rail, memory)
        match found:
            case Grant():
                return found
            case None:
                if not seat.flagged():
                    return None
            case Later(seconds=seconds) if seconds > LONGEST_WAIT:
                return None
            case Later(seconds=seconds, new_work_helps=helps):
                seat.wait(seconds, until_flag=helps)


def _prepare(line: Line, grant: Grant) -> Bound | None:
    """Turn a grant into a committed batch. Whatever is not used goes back, also when this fails."""
    bound: Bound | None = None
    try:
        if grant.replay:
            reopened = reopen_batch(line.adapter, grant.batch)
            if isinstance(reopened, Hopeless):
                _give_up(reopened)
            else:
                bound = reopened
        else:
            bound, _ = claim_batch(line.adapter, line.channel, line.rail, grant.batch, grant.takes)
    finally:
        if bound is None:
            _settle(line, grant, Event.NONE, unused=True, back=_back(grant, ()))
    return bound


def _give_up(hopeless: Hopeless) -> None:
    with transaction.atomic():
        if record.finish(hopeless.id, hopeless.fence, BatchState.AMBIGUOUS, hopeless.why):
            record.leave_ambiguous(hopeless.id, hopeless.why)
    log.error("batch_ambiguous", extra={"batch": hopeless.id, "code": hopeless.why.code})


def _back(grant: Grant, sent: Sequence[BoundSend]) -> list[tuple[int, int, float]]:
    """Tenant tokens of the grant that `sent` did not use."""
    used: dict[int, int] = {}
    for send in sent:
        used[send.tenant] = used.get(send.tenant, 0) + 1
    return [
        (tenant, charged - used.get(tenant, 0), capacity)
        for tenant, (charged, capacity) in grant.charged.items()
        if charged > used.get(tenant, 0)
    ]


def _request(line: Line, grant: Grant, bound: Bound, started: float) -> Recorded:
    answer = _call(line.adapter, bound, started)
    ruling = outcomes.rule(
        answer.verdict, bound=bound.replay, confirmation=line.adapter.confirmation, last_error=bound.last_error
    )
    gone_back = not bound.replay and ruling.fate in outcomes.RETURNED
    settled = _settle(line, grant, ruling.event, back=_back(grant, () if gone_back else bound.sends), answer=answer)
    recorded = record_answer(
        line.channel,
        line.rail,
        bound,
        answer,
        ruling,
        circuit_open=bool(settled and settled.circuit),
        alone=grant.alone,
    )
    _tell(line, bound, answer, recorded)
    if recorded.waiting:
        send_ticket(line.channel, line.rail)
    return recorded


def _call(adapter: Adapter, bound: Bound, started: float) -> Answer:
    """The one request. Not made if it could outlive the lease: then another worker may already have the batch."""
    left = started + LEASE - LEASE_MARGIN - time.monotonic()
    if left < REQUEST_DEADLINE:
        return Answer(
            Verdict.NOT_SENT, code="too_late", detail="The worker was held up for too long to send it safely."
        )
    assert not transaction.get_connection().in_atomic_block, "Bug: a provider request inside a transaction"
    return adapter.send(
        bound.body, items=len(bound.sends), idempotency_key=bound.idempotency_key, timeout=REQUEST_DEADLINE
    )


def _settle(
    line: Line,
    grant: Grant,
    event: Event,
    *,
    unused: bool = False,
    back: Sequence[tuple[int, int, float]] = (),
    answer: Answer | None = None,
) -> Settled | None:
    """Report to the governor. With Redis away there is nobody to report to; the answer must be recorded all the same."""
    hint = (answer.limit if answer else None) or LimitHint(None, None, None)
    try:
        settled = line.governor.settle(
            grant=grant.id,
            batch=str(grant.batch),
            event=event,
            limits=grant.limits,
            epoch=grant.decision.epoch,
            unused=unused,
            back=back,
            retry_after=answer.retry_after if answer else None,
            remaining=hint.remaining,
        )
    except redis.RedisError as error:
        log.warning("settle_failed", extra={"batch": grant.batch, "error": type(error).__name__})
        return None
    if settled.opened:
        log.error("circuit_opened", extra={"provider": line.adapter.name, "reason": settled.circuit})
    if settled.closed:
        log.info("circuit_closed", extra={"provider": line.adapter.name})
    return settled


def _tell(line: Line, bound: Bound, answer: Answer, recorded: Recorded) -> None:
    quiet = recorded.state in (BatchState.ACCEPTED, BatchState.PARTIAL)
    log.log(
        logging.INFO if quiet else logging.WARNING,
        "batch_recorded",
        extra={
            "batch": bound.id,
            "provider": line.adapter.name,
            "rail": line.rail,
            "state": recorded.state,
            "items": len(bound.sends),
            "accepted": len(recorded.accepted),
            "attempt": bound.attempts,
            "status": answer.http_status,
            "code": answer.code,
            "fenced_out": recorded.fenced_out,
        },
    )
