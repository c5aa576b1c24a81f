"""Contents at which a provider falters: their requests end without an answer that can be trusted, again and again, while others'
are accepted. Their batch stays bound (it may have been sent), but it shall bind no more strangers.

A batch that ended unknown twice while another one was accepted is a *stall*. Its lanes remember it for an hour. Those that were in
more stalls than the others of the batch go apart from them; if all were in as many, they are halved, as for a refusal
(`dispatch.refusals`), and the next acceptance lets innocents go. A lane that stalled by itself stays apart for that hour. What
goes apart and fails does not count towards the circuit, as long as others are accepted.
"""

from __future__ import annotations

import logging

from django.db import transaction

from core.ids import new_id
from messaging.culprits import halves
from messaging.dispatch.batch import Bound
from messaging.ledger import lanes
from messaging.ledger import stalls as ledger
from messaging.ledger.lanes import STALLS_APART
from messaging.providers.base import Answer, Verdict
from messaging.rails import Channel, Rail

log = logging.getLogger(__name__)

#: The attempt whose unknown answer is a stall: the first one may have met a provider's bad moment.
_STALLING_ATTEMPT = 2


def is_stall(provider: str, bound: Bound, answer: Answer) -> bool:
    """An answer that cannot be trusted, while the provider has just accepted others. Asks the ledger only in that case."""
    return answer.verdict is Verdict.UNKNOWN and ledger.accepts_others(provider, bound.id)


def note(channel: Channel, rail: Rail, bound: Bound) -> None:
    """Remember the stall, and set its lanes apart; in a transaction of its own, after the answer was recorded."""
    if bound.attempts != _STALLING_ATTEMPT:
        return
    found = sorted({send.lane for send in bound.sends}, key=lambda lane: lane.place)
    with transaction.atomic():
        lanes.lock(found)
        known = ledger.add(channel, rail, found, STALLS_APART if len(found) == 1 else 1)
        most = max(known.values(), default=0)
        worst = [lane for lane in found if known.get(lane, 0) == most]
        parties = [worst] if len(worst) <= len(found) / 2 else list(halves(found))
        for party in parties:
            if party:
                lanes.isolate(channel, rail, party, new_id() if len(party) > 1 else None)
    log.warning("batch_stalled", extra={"batch": bound.id, "lanes": len(found), "apart": [len(p) for p in parties]})
