"""One ticket, one turn: at most one provider request.

    lead → search → (wait) → grant → claim, commit → next ticket → release the lead → render, commit → request → settle → record

The lead is released as soon as the sends are bound, so that requests overlap and nobody waits for another's templates; the next
ticket is left before that, so that no due send waits for this request to end.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import redis
from django.db import Error, close_old_connections, transaction

from core.broker import queues
from core.db.cursor import brief_waits
from core.db.faults import is_transient, place_of
from core.governor.client import Bucket, Event, Governor, Refusal, Settled
from core.telemetry.redis_client import quick_client
from messaging.dispatch import one_waits, outcomes
from messaging.dispatch.forming import form_batch
from messaging.dispatch.lateness import lateness_of
from messaging.dispatch.leader import Leader, leader_of
from messaging.dispatch.outcomes import Outcome
from messaging.dispatch.preparing import FencedOut, prepare_batch
from messaging.dispatch.recording import Recorded, record_answer
from messaging.dispatch.reopening import reopen_batch, take_over
from messaging.dispatch.scheduler import Grant, Memory, Wait, memory_of, search
from messaging.domain.lifecycle import BatchState
from messaging.domain.rails import Channel, Rail, queue_name
from messaging.isolation import rejections, stalls
from messaging.ledger import claims_log, lanes, lost_claims, preparing, record
from messaging.ledger.batch import Bound, Claimed, Formed, Hopeless, Waits
from messaging.ledger.claim import LEASE, PREPARING_LEASE, BoundSend
from messaging.ledger.recover import Recovered
from messaging.providers.base import Adapter, Answer, LimitHint, Verdict
from messaging.providers.registry import adapter_for
from messaging.services.tickets import send_ticket
from messaging.telemetry.counted import count_batch

log = logging.getLogger(__name__)

#: Seconds that one request may take in all.
REQUEST_DEADLINE = 10.0
#: Seconds of the lease that are kept for recording the answer.
LEASE_MARGIN = 5.0
#: Seconds for which the tenants of lanes are left out that somebody was changing.
LOCKED_SECONDS = 0.25
#: Seconds after the end of its lease by which a batch that was being prepared is released: some beats of the clock.
ACCUSED_SECONDS = 3.0
#: Seconds for which a thread whose turn has died of a bug takes no other ticket; then it leaves the one that it had.
BUG_SECONDS = 1.0
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
    try:
        return _serve(channel, rail)
    except Exception as error:
        if not is_transient(error):
            # A process whose turns all die (a bad deploy) would be the fastest to take the tickets of those that work.
            time.sleep(BUG_SECONDS)
            send_ticket(channel, rail)
        raise


def _serve(channel: Channel, rail: Rail) -> Recorded | None:
    adapter = adapter_for(channel)
    if adapter is None:
        raise AssertionError(f"Bug: a ticket for the channel {channel}, which has no provider")
    line = Line(adapter, governor_of(adapter.name), channel, rail)
    leader = leader_of(adapter.name, channel, rail)
    if not leader.acquire():
        return None
    started = time.monotonic()
    grant: Grant | None = None
    work: Formed | Recovered | None = None
    more = False
    try:
        _clear_suspicion(line)
        grant = _wait_for_grant(line, leader)
        if grant is None:
            more = not queues.may_work(queue_name(channel, rail))
            return None
        started = time.monotonic()
        work, more = take_work(line, grant)
    finally:
        if leader.release() or more:
            send_ticket(channel, rail)
    bound = make_ready(line, grant, work) if work else None
    return request(line, grant, bound, started) if bound else None


def _wait_for_grant(line: Line, leader: Leader) -> Grant | None:
    """Look for work until there is a grant. None: nothing is due, the wait is long enough to end the ticket, or this process
    may not begin any more: marketing yields, or the worker stops."""
    place = (line.adapter.name, line.channel, line.rail)
    may_work = functools.partial(queues.may_work, queue_name(line.channel, line.rail))
    while may_work():
        leader.about_to_search()
        found = search(line.adapter, line.governor, line.channel, line.rail, line.memory, interrupted=leader.flagged)
        match found:
            case Grant():
                return found
            case None:
                if not leader.flagged():
                    return None
            case Wait(seconds=seconds) if seconds > LONGEST_WAIT:
                return None
            case Wait(seconds=seconds, new_work_helps=True):
                leader.wait(seconds, until_flag=True)
            case Wait(seconds=seconds):
                one_waits.wait(place, seconds, sleep=functools.partial(leader.wait, until_flag=False), go_on=may_work)
    return None


def take_work(line: Line, grant: Grant) -> tuple[Formed | Recovered | None, bool]:
    """The sends of a grant, bound and committed; whether due ones stay behind. What is not used goes back, also when this
    fails."""
    work: Formed | Recovered | None = None
    more = grant.more
    try:
        if grant.replay:
            work = take_over(grant.batch)
        else:
            claimed = form_batch(line.adapter, line.channel, line.rail, grant.batch, grant.takes)
            work = claimed.formed
            more = more or claimed.left_behind
            line.memory.exclude_for(claimed.locked, LOCKED_SECONDS)
            _keep_waiting(line, claimed.waits)
            _keep_apart(line, claimed)
    finally:
        if work is None:
            _give_back(line, grant)
    return work, more


def make_ready(line: Line, grant: Grant, work: Formed | Recovered) -> Bound | None:
    """Render, and commit the batch that may be requested. None: there is nothing to request. What is not used goes back."""
    bound: Bound | None = None
    try:
        if isinstance(work, Recovered):
            reopened = reopen_batch(line.adapter, work)
            if isinstance(reopened, Hopeless):
                _leave_ambiguous(reopened)
            else:
                bound = reopened
        else:
            bound = _prepare(line, work)
    finally:
        if bound is None:
            _give_back(line, grant)
    return bound


def _prepare(line: Line, formed: Formed) -> Bound | None:
    try:
        prepared = prepare_batch(line.adapter, formed)
    except (FencedOut, Error) as error:
        # We live: whatever it was that took so long, it was none of these sends. They are not accused before their lease ends.
        accused_by = time.monotonic() + (0 if isinstance(error, FencedOut) else PREPARING_LEASE + ACCUSED_SECONDS)
        line.memory.innocent.append((accused_by, [send.id for send in formed.sends]))
        if not isinstance(error, FencedOut):
            raise
        log.warning("batch_fenced_out", extra={"batch": formed.id, "items": len(formed.sends)})
        return None
    line.memory.slow(prepared.slow)
    _keep_waiting(line, prepared.waits)
    if prepared.left_behind:
        send_ticket(line.channel, line.rail)
    return prepared.bound


def _clear_suspicion(line: Line) -> None:
    """Sends that this process had in hand when their lease ran out are no suspects."""
    innocent = line.memory.innocent
    while innocent and innocent[0][0] <= time.monotonic():
        preparing.acquit(innocent[0][1])
        innocent.popleft()


def _give_back(line: Line, grant: Grant) -> None:
    _settle(line, grant, Event.NONE, unused=True, back=_unused_tokens(grant, ()))


def _keep_waiting(line: Line, waits: Waits) -> None:
    """Lanes whose sends must not go out now wait, in a transaction of their own: a claim holds them in share, perhaps one that
    stands still, and this may be the leader, on which the sends of others wait."""
    with _as_a_hint():
        for lane, (why, seconds) in waits.items():
            with transaction.atomic(), brief_waits():
                lanes.hold(line.channel, line.rail, lane, why, seconds)
            log.error("lane_held", extra={"tenant": lane.tenant, "blast": lane.blast, "code": why.code})


def _keep_apart(line: Line, claimed: Claimed) -> None:
    with _as_a_hint():
        if claimed.apart:
            with transaction.atomic(), brief_waits():
                lanes.keep_apart(line.channel, line.rail, claimed.apart)


@contextmanager
def _as_a_hint() -> Iterator[None]:
    """What is done here beside the batch in hand is done again by the next one that meets the same: a database that is away, or
    a lock that cannot be had, must not keep this one from going on."""
    try:
        yield
    except (Error, redis.RedisError) as error:
        if not is_transient(error):
            raise
        log.warning("hint_not_written", extra={"error": type(error).__name__, "place": place_of(error)})
        close_old_connections()


def _leave_ambiguous(hopeless: Hopeless) -> None:
    with transaction.atomic():
        if record.finish(hopeless.id, hopeless.fence, BatchState.AMBIGUOUS, hopeless.why):
            record.leave_ambiguous(hopeless.id, hopeless.why)
    log.error("batch_ambiguous", extra={"batch": hopeless.id, "code": hopeless.why.code})


def _unused_tokens(grant: Grant, sent: Sequence[BoundSend]) -> list[tuple[int, int, Bucket]]:
    """Tenant tokens of the grant that `sent` did not use."""
    used: dict[int, int] = {}
    for send in sent:
        used[send.tenant] = used.get(send.tenant, 0) + 1
    return [
        (tenant, charged - used.get(tenant, 0), bucket)
        for tenant, (charged, bucket) in grant.charged.items()
        if charged > used.get(tenant, 0)
    ]


def request(line: Line, grant: Grant, bound: Bound, started: float) -> Recorded:
    """The one request of a grant, and what came back, recorded. `started`: monotonic time of the grant."""
    moved = _ledger_moved(bound)
    if not moved:
        _announce_probe(line, grant)
        _charge_lateness(line, grant, started)  # the last thing before the wire: what comes after it is told to nobody
    answer = None if moved else _call(line.adapter, bound, started)
    if answer is None:
        answer = _MOVED if moved else _TOO_LATE
        outcome, unused = outcomes.TOO_LATE_BOUND if bound.replay else outcomes.TOO_LATE, True
    else:
        outcome, unused = _outcome(line.adapter, bound, answer), False
    counts = grant.decision.probe or stalls.counts_for_circuit(
        line.adapter.name, bound, answer, apart=bool(grant.apart)
    )
    gone_back = outcome.disposition in outcomes.RETURNED
    settled = _settle(
        line,
        grant,
        outcome.event if counts else Event.NONE,
        unused=unused,
        back=_unused_tokens(grant, () if gone_back else bound.sends),
        answer=answer,
        refused=rejections.evidence(line.channel, bound, answer, searched=grant.retry),
        # What never left cannot have failed for its contents.
        failed_for=bound.tenants if answer.verdict is Verdict.UNKNOWN else (),
    )
    recorded = _record(line, grant, bound, answer, outcome, circuit=settled.circuit if settled else "", started=started)
    if recorded.waiting:
        send_ticket(line.channel, line.rail)
    if not unused:
        _count(line, bound, answer, recorded)
    _log_recorded(line, bound, answer, recorded)
    # Each by itself: what one of them meets must not cost the others.
    if settled and settled.refused_for:
        with _as_a_hint():
            rejections.lift(line.channel, settled.refused_for)
    if recorded.accepted and not recorded.fenced_out:
        with _as_a_hint():
            rejections.on_accepted(
                line.channel, line.rail, bound, grant.apart, trial=grant.trial, suspects=grant.suspects
            )
    if recorded.state is BatchState.UNKNOWN:
        with _as_a_hint():
            stalls.note(line.adapter.name, line.channel, line.rail, bound, answer)
    if moved:
        with _as_a_hint():
            lost_claims.scan(patient=True)
    return recorded


_TOO_LATE = Answer(Verdict.NOT_SENT, code="too_late", detail="The worker was held up for too long to send it safely.")
_MOVED = Answer(Verdict.NOT_SENT, code="ledger_moved", detail="What the database may have lost is looked for first.")


def _ledger_moved(bound: Bound) -> bool:
    """Note the claim, so that a database that loses it can be told. True: this one may have lost claims already."""
    try:
        return not claims_log.note(bound.server, bound.id, bound.fence, bound.claim)
    except redis.RedisError as error:
        log.warning("claim_not_noted", extra={"batch": bound.id, "error": type(error).__name__})
        return False


def _record(
    line: Line, grant: Grant, bound: Bound, answer: Answer, outcome: Outcome, *, circuit: str, started: float
) -> Recorded:
    """Record the answer, and again while the database is away and the lease lasts: what the provider has taken should not
    have to be asked for a second time."""
    pause = 0.1
    while True:
        try:
            return record_answer(line.adapter, line.rail, bound, answer, outcome, circuit=circuit, trial=grant.trial)
        except Error as error:
            if not is_transient(error) or time.monotonic() + pause > started + LEASE - 1:
                raise
            log.warning("record_repeated", extra={"batch": bound.id, "error": type(error).__name__})
            close_old_connections()
            time.sleep(pause)
            pause = min(1.0, pause * 2)


def _charge_lateness(line: Line, grant: Grant, started: float) -> None:
    """Claiming took longer than usual (a busy machine, a large batch): the governor shifts what comes after."""
    late = lateness_of(line.adapter.name, line.rail).of(time.monotonic() - started)
    if late > 0:
        try:
            line.governor.late(late, grant.limits)
        except redis.RedisError as error:
            log.warning("late_untold", extra={"batch": grant.batch, "error": type(error).__name__})


def _announce_probe(line: Line, grant: Grant) -> None:
    if grant.decision.probe:
        try:
            line.governor.leaves(grant.id)
        except redis.RedisError as error:
            log.warning("probe_untold", extra={"batch": grant.batch, "error": type(error).__name__})


def _outcome(adapter: Adapter, bound: Bound, answer: Answer) -> Outcome:
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
    back: Sequence[tuple[int, int, Bucket]] = (),
    answer: Answer | None = None,
    refused: Refusal | None = None,
    failed_for: Sequence[str] = (),
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
            failed_for=failed_for,
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
        response=str(answer.http_status or answer.code or answer.verdict),
        state=recorded.state,
        accepted=recorded.accepted.values(),
        failed=len(answer.item_errors),
        fenced_out=recorded.fenced_out,
    )


def _log_recorded(line: Line, bound: Bound, answer: Answer, recorded: Recorded) -> None:
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
