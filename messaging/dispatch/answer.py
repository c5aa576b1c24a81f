"""What came back, written down: the ruling of `messaging.outcomes`, carried out in one transaction."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from messaging import outcomes
from messaging.dispatch.batch import Bound
from messaging.ledger import lanes, record
from messaging.ledger.lanes import LaneKey
from messaging.ledger.record import Failure
from messaging.lifecycle import BatchState
from messaging.outcomes import MAX_ATTEMPTS, Fate, Ruling
from messaging.providers.base import Answer
from messaging.rails import Channel, Rail

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recorded:
    """`accepted`: seconds from submit to acceptance of each send that was taken. `fenced_out`: not ours any more."""

    state: BatchState
    accepted: dict[UUID, float]
    fenced_out: bool = False
    waiting: bool = False  # sends went back to wait for the rail


def record_answer(
    channel: Channel,
    rail: Rail,
    bound: Bound,
    answer: Answer,
    ruling: Ruling,
    *,
    circuit_open: bool,
    culprit: LaneKey | None = None,
) -> Recorded:
    """Carry out `ruling`. Everything or nothing: batch, sends, job and dead letters change in one commit.

    `culprit`: the lane whose single send was refused on trial while others were accepted: the send fails, the lane goes on.
    """
    why = Failure(answer.code or answer.verdict, answer.detail, answer.http_status)
    with transaction.atomic():
        match ruling.fate:
            case Fate.SENT:
                return _sent(bound, answer)
            case Fate.BOUND:
                # Said again until it is over: a second miscount ends it, whatever came between.
                if outcomes.MISCOUNTED in (answer.verdict, bound.last_error):
                    why = Failure(outcomes.MISCOUNTED, answer.detail, answer.http_status)
                kept = record.keep_bound(bound.id, bound.fence, outcomes.replay_delay(rail, bound.attempts), why)
                return Recorded(ruling.state, {}, fenced_out=not kept)
            case Fate.AMBIGUOUS:
                if not record.finish(bound.id, bound.fence, ruling.state, why):
                    return Recorded(ruling.state, {}, fenced_out=True)
                record.leave_ambiguous(bound.id, why)
                return Recorded(ruling.state, {})
            case Fate.DUE_AGAIN | Fate.BACK_OFF | Fate.SORT_LANES:
                return _returned(channel, rail, bound, ruling, why, circuit_open, culprit)


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


def _returned(
    channel: Channel,
    rail: Rail,
    bound: Bound,
    ruling: Ruling,
    why: Failure,
    circuit_open: bool,
    culprit: LaneKey | None,
) -> Recorded:
    keys = sorted({LaneKey(s.tenant, s.blast) for s in bound.sends}, key=lambda k: k.place)
    if ruling.fate is Fate.SORT_LANES:
        if culprit:
            lanes.isolate(channel, rail, [culprit])
        elif len(keys) == 1:
            lanes.hold(channel, rail, keys[0], why)
            log.error(
                "lane_held",
                extra={"tenant": keys[0].tenant, "blast": keys[0].blast, "code": why.code, "status": why.http_status},
            )
        else:
            lanes.isolate(channel, rail, keys)
    else:
        record.lock_for_return(sorted({k.blast for k in keys if k.blast is not None}))
    if not record.finish(bound.id, bound.fence, ruling.state, why):
        # Ours no more; what was written on lanes is undone with the rest.
        transaction.set_rollback(True)
        return Recorded(ruling.state, {}, fenced_out=True)
    if culprit:
        record.fail(bound.id, {s.id: why for s in bound.sends})
        return Recorded(ruling.state, {}, waiting=True)
    counted = ruling.fate is Fate.BACK_OFF and not circuit_open
    if ruling.fate is not Fate.BACK_OFF:
        told = _OPERATORS.get(ruling.state, why)
        record.give_back(bound.id, {s.id: None for s in bound.sends}, counted=False, why=told)
        return Recorded(ruling.state, {}, waiting=True)
    spent = [s for s in bound.sends if counted and s.attempts + 1 >= MAX_ATTEMPTS]
    record.fail(bound.id, {s.id: Failure("attempts_exhausted", f"{why.code}: {why.detail}") for s in spent})
    record.give_back(
        bound.id,
        {s.id: outcomes.back_off(s.attempts) for s in bound.sends if s not in spent},
        counted=counted,
        why=why,
    )
    return Recorded(ruling.state, {})
