"""What came back, written down: the outcome of `messaging.dispatch.outcomes`, carried out in one transaction."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from uuid import UUID

from django.db import transaction

from messaging.dispatch import outcomes
from messaging.dispatch.outcomes import MAX_ATTEMPTS, Disposition, Outcome
from messaging.domain.lifecycle import BatchState
from messaging.domain.rails import Rail
from messaging.isolation import rejections
from messaging.ledger import record, sender_holds
from messaging.ledger.batch import Bound
from messaging.ledger.record import Failure
from messaging.providers.base import Adapter, Answer, Verdict


@dataclass(frozen=True, slots=True)
class Recorded:
    """`accepted`: seconds from submit to acceptance of each send that was taken. `fenced_out`: not ours any more."""

    state: BatchState
    accepted: dict[UUID, float]
    fenced_out: bool = False
    waiting: bool = False  # sends went back to wait for the rail


def record_answer(
    adapter: Adapter,
    rail: Rail,
    bound: Bound,
    answer: Answer,
    outcome: Outcome,
    *,
    circuit: str = "",
    trial: bool = False,
) -> Recorded:
    """Carry out `outcome`. Everything or nothing: batch, sends, job and dead letters change in one commit.

    `circuit`: why it is open for the rail, this answer included; "" if it is not. `trial`: a held lane's one send.
    """
    why = Failure(answer.code or answer.verdict, answer.detail, answer.http_status)
    told = why if bound.one_tenant else replace(why, detail=_NEUTRAL)
    with transaction.atomic():
        match outcome.disposition:
            case Disposition.SENT:
                return _sent(bound, answer)
            case Disposition.BOUND:
                # Said again until it is over: a second miscount ends it, whatever came between.
                if outcomes.MISCOUNTED in (answer.verdict, bound.last_error):
                    why = Failure(outcomes.MISCOUNTED, answer.detail, answer.http_status)
                delay = outcomes.replay_delay(rail, bound.attempts)
                if answer.verdict is Verdict.NOT_FOUND:
                    delay = max(delay, bound.settles_in or 0)
                kept = record.keep_bound(bound.id, bound.fence, delay, why)
                return Recorded(outcome.state, {}, fenced_out=not kept)
            case Disposition.AMBIGUOUS:
                if not record.finish(bound.id, bound.fence, outcome.state, why):
                    return Recorded(outcome.state, {}, fenced_out=True)
                record.leave_ambiguous(bound.id, told)
                return Recorded(outcome.state, {})
            case Disposition.ISOLATE_LANES | Disposition.ISOLATE_SENDERS:
                return _refused(adapter, rail, bound, outcome, why, told, circuit, trial)
            case Disposition.DUE_AGAIN | Disposition.BACK_OFF:
                return _returned(adapter, bound, answer, outcome, why, told, circuit)


#: What tenants read whose sends were in one request with others': the provider's words may be about another one.
_NEUTRAL = "The provider did not take the request that this was in; it may not have been for this one."
#: What a tenant reads at its waiting send when the trouble is the operator's. The batch keeps the provider's words.
_OPERATORS = {
    BatchState.CREDENTIAL: Failure(
        "provider_refuses_operator",
        "The platform's account at the provider is refused. Your send waits; nothing for you to do.",
    ),
    BatchState.RATE_LIMITED: Failure("provider_rate_limited", "The provider asked to wait. Your send waits its turn."),
}


def _sent(bound: Bound, answer: Answer) -> Recorded:
    state = BatchState.PARTIAL if answer.item_errors else BatchState.ACCEPTED
    late = not record.finish(bound.id, bound.fence, state)
    if late and not record.finish_accepted_late(bound.id, state):
        return Recorded(state, {}, fenced_out=True)
    accepted = record.accept(
        bound.id,
        {send.id: pid for send, pid in zip(bound.sends, answer.provider_ids, strict=True) if pid is not None},
    )
    record.fail(
        bound.id,
        {bound.sends[i].id: Failure(e.code, e.detail, answer.http_status) for i, e in answer.item_errors.items()},
    )
    return Recorded(state, accepted, fenced_out=late)


def _fenced_out(state: BatchState) -> Recorded:
    """Ours no more; what was written on lanes is undone with the rest."""
    transaction.set_rollback(True)
    return Recorded(state, {}, fenced_out=True)


def _returned(
    adapter: Adapter, bound: Bound, answer: Answer, outcome: Outcome, why: Failure, told: Failure, circuit: str
) -> Recorded:
    record.lock_for_return(sorted({s.blast for s in bound.sends if s.blast is not None}))
    # A provider that was asked may have some of them.
    found = {s.id: pid for s, pid in zip(bound.sends, answer.provider_ids, strict=False) if pid is not None}
    state = BatchState.PARTIAL if found else outcome.state
    if not record.finish(bound.id, bound.fence, state, why):
        return _fenced_out(state)
    accepted = record.accept(bound.id, found) if found else {}  # sent now: what follows does not touch them
    if outcome.disposition is Disposition.DUE_AGAIN:
        told = _OPERATORS.get(outcome.state, told)
        record.give_back(bound.id, {s.id: None for s in bound.sends}, counted=False, why=told)
        return Recorded(state, accepted, waiting=True)
    counted = not circuit
    spent = {s.id for s in bound.sends if counted and s.attempts + 1 >= MAX_ATTEMPTS}
    exhausted = Failure("attempts_exhausted", f"{told.code}: {told.detail}")
    record.fail(bound.id, dict.fromkeys(spent, exhausted))
    delays = {
        s.id: outcomes.back_off(s.attempts, adapter.longest_back_off, random.random())  # noqa: S311
        for s in bound.sends
        if s.id not in spent
    }
    record.give_back(bound.id, delays, counted=counted, why=told)
    return Recorded(state, accepted)


def _refused(
    adapter: Adapter,
    rail: Rail,
    bound: Bound,
    outcome: Outcome,
    why: Failure,
    told: Failure,
    circuit: str,
    trial: bool,
) -> Recorded:
    """Whose fault is it? Looked for in lanes and senders, before the batch is locked (the order of locks)."""
    delays: dict[UUID, float | None] = {s.id: None for s in bound.sends}
    culprit, waiting = False, None
    if outcome.disposition is Disposition.ISOLATE_SENDERS:
        waiting = rejections.isolate_rejected_senders(adapter.channel, rail, bound, why, refusing=circuit == "refusing")
    elif circuit:  # everybody is refused: it is nobody's content
        record.lock_for_return(sorted({s.blast for s in bound.sends if s.blast is not None}))
    else:
        culprit = rejections.isolate_rejected_lanes(adapter, rail, bound, why, trial=trial)
    if not record.finish(bound.id, bound.fence, outcome.state, why):
        return _fenced_out(outcome.state)
    if culprit:
        record.fail(bound.id, dict.fromkeys(delays, told))
    else:
        if waiting:
            sender_holds.set_aside(bound.id, waiting.hold, waiting.sends, told)
        record.give_back(bound.id, delays, counted=False, why=told)  # those that were set aside are not touched
    return Recorded(outcome.state, {}, waiting=True)
