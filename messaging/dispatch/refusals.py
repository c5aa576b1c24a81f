"""A request was refused as a whole: whose fault is it? In the transaction that records it, before its batch is locked.

Lanes first: those of the request are halved until one is refused alone, then the culprit is looked for in it
(`messaging.culprits`). Sender domains in the same way (`messaging.ledger.senders`). All others leave on the way.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from django.db import transaction

from core.ids import new_id
from messaging.culprits import Step, after_acceptance, after_refusal, halves
from messaging.dispatch.batch import Bound
from messaging.ledger import lanes, record, senders
from messaging.ledger.lanes import LaneKey
from messaging.ledger.record import Failure
from messaging.providers.base import Adapter
from messaging.rails import Channel, Rail

log = logging.getLogger(__name__)


def _lanes_of(bound: Bound) -> list[LaneKey]:
    return sorted({send.lane for send in bound.sends}, key=lambda lane: lane.place)


def sort_lanes(adapter: Adapter, rail: Rail, bound: Bound, why: Failure, *, trial: bool) -> bool:
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


def sort_senders(channel: Channel, rail: Rail, bound: Bound, why: Failure) -> dict[UUID, float | None]:
    """A sender domain was refused. Returns the seconds that each send waits; None: due at once."""
    domain_of = senders.domains_of({s.content for s in bound.sends})
    domains = sorted(set(domain_of.values()))
    blasts = sorted({s.blast for s in bound.sends if s.blast is not None})
    if len(domains) > 1:
        record.lock_for_return(blasts)
        # One that is known to be refused explains it: another worker found it, and this request had left already.
        senders.forget()
        known = senders.watched(channel)
        held = [d for d in domains if d in known and known[d].left is not None]
        if not held:
            for half in halves(domains):
                senders.suspect(channel, dict.fromkeys(half, new_id() if len(half) > 1 else None))
        return {s.id: None for s in bound.sends}
    (domain,) = domains
    lanes.lock([lane for lane in _lanes_of(bound) if lane.blast is not None])
    seconds = senders.hold(channel, domain, why)
    for lane in _lanes_of(bound):
        if lane.blast is not None:
            lanes.hold(channel, rail, lane, why, seconds)
    log.error("sender_held", extra={"domain": domain, "code": why.code, "status": why.http_status, "seconds": seconds})
    return {s.id: None if s.blast is not None else seconds for s in bound.sends}


def passed(channel: Channel, rail: Rail, bound: Bound, apart: Sequence[LaneKey], *, trial: bool, suspects: int) -> None:
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
            senders.clear(channel, bound.senders)
        log.info("sender_released", extra={"domains": len(bound.senders)})
