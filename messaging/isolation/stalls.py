"""Contents at which a provider falters: their requests end without an answer that can be trusted, again and again, while others'
are accepted. Their batch stays bound (it may have been sent), but it shall bind no more strangers.

The lanes of a batch that ended unknown twice go apart, in halves, as after a refusal (`isolation.rejections`): if it was the
provider, the next acceptance lets them go. If it accepted others meanwhile, it was a *stall*, which the lanes remember for an
hour: of the next such batch, those that were in more stalls than the others go apart from them, and a lane that stalled by
itself stays apart for that hour. What goes apart and fails does not count towards the circuit, as long as others are accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from django.db import InterfaceError, OperationalError, transaction

from core.security.ids import new_id
from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel, Rail
from messaging.isolation.bisection import halves
from messaging.ledger import lanes
from messaging.ledger import stalls as ledger
from messaging.ledger.batch import Bound
from messaging.ledger.lanes import STALLS_APART
from messaging.providers.base import Answer, Verdict

log = logging.getLogger(__name__)

#: The attempt whose unknown answer sets lanes apart: the first one may have met a provider's bad moment.
_ATTEMPT = 2


def counts_for_circuit(provider: str, bound: Bound, answer: Answer, *, apart: bool) -> bool:
    """Whether an answer that cannot be trusted says anything of the provider. Not of contents that are under suspicion (their
    lanes go apart, or they have been repeated before) while it accepts others."""
    if answer.verdict is not Verdict.UNKNOWN or not (apart or bound.attempts > _ATTEMPT):
        return True
    try:
        return not ledger.accepts_others(provider, bound.id)
    except (OperationalError, InterfaceError) as error:
        # The governor must hear of the answer all the same.
        log.warning("acceptances_unread", extra={"batch": bound.id, "error": type(error).__name__})
        return True


def note(provider: str, channel: Channel, rail: Rail, bound: Bound, answer: Answer) -> None:
    """Set the lanes of a batch apart that ended unknown; in a transaction of its own, after that was recorded."""
    if answer.verdict is not Verdict.UNKNOWN or bound.attempts < _ATTEMPT:
        return
    found = sorted({send.lane for send in bound.sends}, key=lambda lane: lane.place)
    alone = len(found) == 1
    if not alone and bound.attempts > _ATTEMPT:
        return  # halved already
    stalled = ledger.accepts_others(provider, bound.id, since_its_claim=True)
    if alone and not stalled:
        return
    with transaction.atomic():
        lanes.lock(found)
        known = ledger.add(channel, rail, found, STALLS_APART if alone else 1) if stalled else {}
        parties = _parties(found, known)
        for party in parties:
            lanes.isolate(channel, rail, party, new_id() if len(party) > 1 else None)
    log.warning(
        "batch_stalled",
        extra={"batch": bound.id, "others_accepted": stalled, "lanes": len(found), "apart": [len(p) for p in parties]},
    )


def _parties(found: list[LaneKey], stalls: Mapping[LaneKey, int]) -> list[list[LaneKey]]:
    """Which lanes go apart, and with which others."""
    most = max(stalls.values(), default=0)
    worst = [lane for lane in found if stalls.get(lane) == most]
    if 0 < len(worst) <= len(found) / 2 or len(found) == 1:
        return [worst or found]
    return [half for half in halves(found) if half]
