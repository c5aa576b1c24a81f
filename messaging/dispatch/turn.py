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
from django.db import Error, close_old_connections, transaction

from core import queues
from core.faults import passes
from core.governor import Event, Governor, Settled
from core.redis_client import quick_client
from messaging import outcomes
from messaging.dispatch import refusals
from messaging.dispatch.answer import Recorded, record_answer
from messaging.dispatch.batch import Bound, Claimed, Hopeless, claim_batch, reopen_batch
from messaging.dispatch.search import Grant, Later, Memory, memory_of, search
from messaging.dispatch.seat import Seat, seat_of
from messaging.ledger import lanes, record
from messaging.ledger.claim import LEASE, BoundSend
from messaging.lifecycle import BatchState
from messaging.metrics.counted import count_batch
from messaging.outcomes import Ruling
from messaging.providers.base import Adapter, Answer, LimitHint, Verdict
from messaging.providers.registry import adapter_for
from messaging.rails import Channel, Rail, queue_name
from messaging.tickets import send_ticket

log = logging.getLogger(__name__)

#: Seconds that one request may take in all.
REQUEST_DEADLINE = 10.0
#: Seconds from grant to wire that the refill has room for (a fixed window of one second leaves 20 ms at 0.98 n), and from which
#: on the governor hears of it (docs/decisions/0009). A batch of a hundred usually has 5 ms, a login code 2.
USUAL_SECONDS = 0.015
LATE_SECONDS = 0.020
#: Seconds of the lease that are kept for recording the answer.
LEASE_MARGIN = 5.0
#: Seconds for which the tenants of lanes are left out that somebody was changing.
LOCKED_SECONDS = 0.25
#: A longer wait ends the ticket: the clock leaves a new one.
LONGEST_WAIT = 2.0


@functools.cache
def governor_of(provider: str) -> Governor:
    # A turn that fails here costs nothing: the clock re-tickets.
    return Governor(quick_client(), provider)


@dataclass(frozen=True, slots=True)
class Line:
    """Where a turn happens: one rail of one channel, its provider, and the governor in front of it."""

    adapter: Adapter
    governor: Governor
    channel: Channel
    rail: Rail

    @property
    def memory(self) -> Memory:
        return memory_of(self.adapter.name, self.channel, self.rail)


def run_ticket(channel: Channel, rail: Rail) -> Recorded | None:
    """Serve one ticket. Returns what was recorded, None if no request was made. Safe to call for nothing."""
    adapter = adapter_for(channel)
    if adapter is None:
        raise AssertionError(f"Bug: a ticket for the channel {channel}, which has no provider")
    line = Line(adapter, governor_of(adapter.name), channel, rail)
    seat = seat_of(adapter.name, channel, rail)
    if not seat.sit():
        return None
    started = time.monotonic()
    prepared: tuple[Grant, Bound] | None = None
    more = False
    try:
        grant = _wait_for_grant(line, seat)
        if grant is None:
            more = not queues.may_work(queue_name(channel, rail))
            return None
        started = time.monotonic()
        bound, more = _prepare(line, grant)
        prepared = (grant, bound) if bound else None
    finally:
        if seat.rise() or more:
            send_ticket(channel, rail)
    return _request(line, *prepared, started) if prepared else None


def _wait_for_grant(line: Line, seat: Seat) -> Grant | None:
    """Look for work until there is a grant. None: nothing is due, the wait is long enough to end the ticket, or this process
    may not begin any more: marketing yields, or the worker stops."""
    while queues.may_work(queue_name(line.channel, line.rail)):
        seat.look()
        found = search(line.adapter, line.governor, line.channel, line.rail, line.memory)
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
    return None


def _prepare(line: Line, grant: Grant) -> tuple[Bound | None, bool]:
    """Turn a grant into a committed batch; whether due sends stay behind. What is not used goes back, also when this fails."""
    bound: Bound | None = None
    more = grant.more
    try:
        if grant.replay:
            reopened = reopen_batch(line.adapter, grant.batch)
            if isinstance(reopened, Hopeless):
                _give_up(reopened)
            else:
                bound = reopened
        else:
            claimed = claim_batch(line.adapter, line.channel, line.rail, grant.batch, grant.takes)
            bound = claimed.bound
            more = more or claimed.left_behind
            line.memory.rest(claimed.locked, LOCKED_SECONDS)
            try:
                _keep_waiting(line, claimed)
            except Error as error:
                # What was put back is put back again by the next claim; what is bound must leave all the same.
                if not passes(error):
                    raise
                log.warning("lanes_not_held", extra={"batch": grant.batch, "error": type(error).__name__})
                close_old_connections()
    finally:
        if bound is None:
            _settle(line, grant, Event.NONE, unused=True, back=_back(grant, ()))
    return bound, more


def _keep_waiting(line: Line, claimed: Claimed) -> None:
    """Lanes whose sends must not go out now wait, in a transaction of their own: the claim held them in share."""
    for lane, (why, seconds) in claimed.waits.items():
        with transaction.atomic():
            lanes.hold(line.channel, line.rail, lane, why, seconds)
        log.error("lane_held", extra={"tenant": lane.tenant, "blast": lane.blast, "code": why.code})
    if claimed.apart:
        with transaction.atomic():
            lanes.keep_apart(line.channel, line.rail, claimed.apart)


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
    _tell_if_late(line, grant, started)
    answer = _call(line.adapter, bound, started)
    if answer is None:
        answer = Answer(
            Verdict.NOT_SENT, code="too_late", detail="The worker was held up for too long to send it safely."
        )
        ruling, unused = outcomes.TOO_LATE_BOUND if bound.replay else outcomes.TOO_LATE, True
    else:
        ruling, unused = _ruling(line.adapter, bound, answer), False
    gone_back = ruling.fate in outcomes.RETURNED
    settled = _settle(
        line,
        grant,
        ruling.event,
        unused=unused,
        back=_back(grant, () if gone_back else bound.sends),
        answer=answer,
        refused=_refused_content(grant, bound, answer),
    )
    recorded = _record(line, grant, bound, answer, ruling, circuit=settled.circuit if settled else "", started=started)
    if recorded.accepted and not recorded.fenced_out:
        refusals.passed(line.channel, line.rail, bound, grant.apart, trial=grant.trial, suspects=grant.suspects)
    if not unused:
        _count(line, bound, answer, recorded)
    _tell(line, bound, answer, recorded)
    if recorded.waiting:
        send_ticket(line.channel, line.rail)
    return recorded


def _record(
    line: Line, grant: Grant, bound: Bound, answer: Answer, ruling: Ruling, *, circuit: str, started: float
) -> Recorded:
    """Record the answer, and again while the database is away and the lease lasts: what the provider has taken should not
    have to be asked for a second time."""
    pause = 0.1
    while True:
        try:
            return record_answer(line.adapter, line.rail, bound, answer, ruling, circuit=circuit, trial=grant.trial)
        except Error as error:
            if not passes(error) or time.monotonic() + pause > started + LEASE - 1:
                raise
            log.warning("record_repeated", extra={"batch": bound.id, "error": type(error).__name__})
            close_old_connections()
            time.sleep(pause)
            pause = min(1.0, pause * 2)


def _refused_content(grant: Grant, bound: Bound, answer: Answer) -> tuple[int, str] | None:
    """(tenant, code) if the contents of one tenant were refused that nobody has suspected before: three of them in a row, and
    it is not their contents."""
    tenants = {send.tenant for send in bound.sends}
    if answer.verdict is not Verdict.REFUSED or grant.retry or len(tenants) > 1:
        return None
    return tenants.pop(), answer.code or answer.verdict


def _tell_if_late(line: Line, grant: Grant, started: float) -> None:
    """Claiming took longer than usual (a busy machine, a large batch): the governor shifts what comes after."""
    held_up = time.monotonic() - started
    if held_up > LATE_SECONDS:
        try:
            line.governor.late(held_up - USUAL_SECONDS, grant.limits)
        except redis.RedisError as error:
            log.warning("late_untold", extra={"batch": grant.batch, "error": type(error).__name__})


def _ruling(adapter: Adapter, bound: Bound, answer: Answer) -> Ruling:
    return outcomes.rule(
        answer.verdict,
        bound=bound.replay,
        confirmation=adapter.confirmation,
        last_error=bound.last_error,
        settled=bound.settles_in is not None and bound.settles_in <= 0,
    )


def _call(adapter: Adapter, bound: Bound, started: float) -> Answer | None:
    """The one request. None: not made, since it could outlive the lease; another worker may already have the batch."""
    left = started + LEASE - LEASE_MARGIN - time.monotonic()
    if left < REQUEST_DEADLINE:
        return None
    assert not transaction.get_connection().in_atomic_block, "Bug: a provider request inside a transaction"
    if bound.settles_in is not None:
        return adapter.ask(
            [send.id for send in bound.sends], idempotency_key=bound.idempotency_key, timeout=REQUEST_DEADLINE
        )
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
    refused: tuple[int, str] | None = None,
) -> Settled | None:
    """Report to the governor. With Redis away there is nobody to report to; the answer must be recorded all the same."""
    hint = (answer.limit if answer else None) or LimitHint(None, None, None)
    try:
        settled = line.governor.settle(
            grant=grant.id,
            batch=str(grant.batch),
            rail=line.rail,
            event=event,
            limits=grant.limits,
            epoch=grant.decision.epoch,
            unused=unused,
            retry=grant.retry,
            refused=refused,
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


def _count(line: Line, bound: Bound, answer: Answer, recorded: Recorded) -> None:
    count_batch(
        line.channel,
        line.rail,
        line.adapter.name,
        items=len(bound.sends),
        answer=answer,
        state=recorded.state,
        accepted=recorded.accepted.values(),
        fenced_out=recorded.fenced_out,
    )


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
