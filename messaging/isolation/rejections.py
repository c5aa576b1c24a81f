"""A request was refused as a whole: whose fault is it? In the transaction that records it, before its batch is locked.

Lanes first: those of the request are halved until one is refused alone, then the culprit is looked for in it
(`bisection`). Sender domains in thirds (`messaging.ledger.sender_holds`). All others leave on the way. If three are refused
alike it is the provider's trouble: `evidence` is what the governor hears of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from django.db import InterfaceError, OperationalError, transaction

from core.governor.client import Refusal
from core.security.ids import new_id
from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel, Rail
from messaging.isolation.bisection import Step, after_acceptance, after_refusal, halves
from messaging.ledger import lanes, record, sender_holds
from messaging.ledger.batch import Bound
from messaging.ledger.claim import LEASE
from messaging.ledger.record import Failure
from messaging.providers.base import Adapter, Answer, Verdict

log = logging.getLogger(__name__)


def _lanes_of(bound: Bound) -> list[LaneKey]:
    return sorted({send.lane for send in bound.sends}, key=lambda lane: lane.place)


def isolate_rejected_lanes(adapter: Adapter, rail: Rail, bound: Bound, why: Failure, *, trial: bool) -> bool:
    """The contents were refused. True: its one send is the culprit, and fails; otherwise all of them go back to wait."""
    channel = adapter.channel
    found = _lanes_of(bound)
    if len(found) > 1:
        lanes.lock(found)
        for half in halves(found):
            lanes.isolate(channel, rail, half, new_id() if len(half) > 1 else None)
        return False
    (lane,) = found
    known = lanes.known(channel, rail, lane)
    if trial and (known.held is None or known.held > 0):
        return False  # another trial, which was under way at the same time, has its answer already
    only_one = trial and len(bound.sends) == 1 and lanes.is_only_one(adapter.name, channel, rail, lane)
    step, search = after_refusal(known.search, len(bound.sends), trial=trial, only_one=only_one)
    told = {"tenant": lane.tenant, "blast": lane.blast, "code": why.code, "status": why.http_status}
    match step:
        case Step.HALVE:
            lanes.search_on(channel, rail, lane, search)
            log.warning("culprit_sought", extra=told | {"suspects": search.suspects})
        case Step.TRY_ANOTHER:
            lanes.hold(channel, rail, lane, why, 0, search)
        case Step.HOLD:
            lanes.hold(channel, rail, lane, why, None, search)
            log.error("lane_held", extra=told)
        case Step.CONVICT:
            lanes.search_on(channel, rail, lane, search)
            log.error("culprit_found", extra=told | {"send": bound.sends[0].id})
    return step is Step.CONVICT


def isolate_rejected_senders(
    channel: Channel, rail: Rail, bound: Bound, why: Failure, *, refusing: bool
) -> Waiting | None:
    """A sender domain was refused. Returns which sends wait for it; None: all are due again at once.

    `refusing`: the circuit is open since everybody is refused. Then nobody is held for it. But who was refused together goes
    apart all the same: a domain that is in order closes the circuit, and must not be refused with another one for ever.
    """
    domain_of = sender_holds.domains_of({s.content for s in bound.sends})
    domains = sorted(set(domain_of.values()))
    blasts = sorted({s.blast for s in bound.sends if s.blast is not None})
    if len(domains) > 1 or refusing:
        record.lock_for_return(blasts)
        # One that is known to be refused explains it: another worker found it, and this request had left already.
        if len(domains) > 1 and not sender_holds.held(channel, domains):
            for part in _thirds(domains):
                sender_holds.suspect(channel, dict.fromkeys(part, new_id() if len(part) > 1 else None))
        return None
    (domain,) = domains
    lanes.lock([lane for lane in _lanes_of(bound) if lane.blast is not None])
    held = sender_holds.hold(channel, domain, why, bound.id, trial=domain in bound.senders)
    for lane in _lanes_of(bound):
        if lane.blast is not None:
            lanes.hold(channel, rail, lane, why, held.seconds)
    if held.new:
        told = {"domain": domain, "code": why.code, "status": why.http_status, "seconds": held.seconds}
        log.error("sender_held", extra=told)
    return Waiting(held.hold, [s.id for s in bound.sends if s.blast is None])


@dataclass(frozen=True, slots=True)
class Waiting:
    """Single sends that wait for their domain."""

    hold: int
    sends: Sequence[UUID]


def _thirds(domains: list[str]) -> list[list[str]]:
    """The parts of a refused request that go together next. Three rather than two: it costs as many requests, of which fewer are
    refused, and if all three are, it is nobody's domain (`Governor.settle`)."""
    n = min(3, len(domains))
    return [domains[i * len(domains) // n : (i + 1) * len(domains) // n] for i in range(n)]


def evidence(channel: Channel, bound: Bound, answer: Answer, *, searched: bool) -> Refusal | None:
    """For whom a request was refused, if none of them was known to be: three of them with nothing in common, in a row, and it is
    nobody's fault but the provider's.

    Contents: of one tenant only, and nobody was searching in them (`searched`). Senders: of whichever domains it held.
    """
    if answer.verdict is Verdict.REFUSED:
        tenants = {send.tenant for send in bound.sends}
        if searched or len(tenants) > 1:
            return None
        return Refusal(f"{answer.verdict}:{answer.code}", (str(tenants.pop()),))
    if answer.verdict is not Verdict.SENDER_REFUSED or bound.replay:
        return None
    try:
        domains = sorted(set(sender_holds.domains_of({send.content for send in bound.sends}).values()))
        known = sender_holds.held(channel, domains)
    except (OperationalError, InterfaceError) as error:
        # The governor must hear of the answer all the same.
        log.warning("senders_unread", extra={"batch": bound.id, "error": type(error).__name__})
        return None
    return None if known else Refusal(f"{answer.verdict}:{answer.code}", tuple(map(_short, domains)))


def _short(domain: str) -> str:
    return sha256(domain.encode()).hexdigest()[:12]


def lift(channel: Channel, refused_for: float) -> None:
    """Everybody was refused, for so many seconds, and that is over: what was learned of sender domains meanwhile is not true.

    A refusal may have been written up to a lease before the governor's answer is acted upon.
    """
    with transaction.atomic():
        holds = sender_holds.lift(channel, refused_for + LEASE)
    log.info("sender_holds_lifted", extra={"holds": holds})


def on_accepted(
    channel: Channel, rail: Rail, bound: Bound, apart: Sequence[LaneKey], *, trial: bool, suspects: int
) -> None:
    """A batch was accepted: of the lanes that went apart, and the domains that were on trial, each knows that now.

    `suspects`: what was known when it was granted. If another batch of the lane was answered since, this one was no half of
    those that are suspected now, and says nothing of them.
    """
    if apart:
        with transaction.atomic():
            lanes.lock(apart)
            known = lanes.known(channel, rail, apart[0])
            search = after_acceptance(known.search, len(bound.sends), trial=trial)
            another_was_faster = known.held is None if trial else known.search.suspects != suspects
            if len(apart) > 1 or not (search.suspects or another_was_faster):
                lanes.release(channel, rail, apart)
            elif not another_was_faster:
                lanes.search_on(channel, rail, apart[0], search)
    if bound.senders:
        with transaction.atomic():
            sender_holds.clear(channel, bound.senders)
        log.info("sender_released", extra={"domains": len(bound.senders)})
