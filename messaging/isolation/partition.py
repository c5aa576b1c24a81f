"""Which of the claimed sends may go together while sender domains are watched (`messaging.ledger.sender_holds`): nearly never."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel
from messaging.ledger import sender_holds
from messaging.ledger.claim import BoundSend
from messaging.ledger.lanes import FIRST_HOLD
from messaging.ledger.record import Failure
from messaging.ledger.sender_holds import Watched


@dataclass(slots=True)
class Chosen:
    """`sends` go into the request, `later` ones back to wait for the next. `on_trial`: the watched domains, if there are no
    others in it. `waits`: blasts whose domain is held, and for how long; `apart`: lanes whose single sends were set aside."""

    sends: Sequence[BoundSend]
    later: list[BoundSend] = field(default_factory=list)
    on_trial: tuple[str, ...] = ()
    waits: dict[LaneKey, tuple[Failure, float | None]] = field(default_factory=dict)
    apart: set[LaneKey] = field(default_factory=set)


def by_sender(channel: Channel, batch: UUID, taken: Sequence[BoundSend], watched: Mapping[str, Watched]) -> Chosen:
    """Divide what was claimed, in the claim's transaction.

    Sends of a held domain wait until its hold ends: single ones as its own, blasts as lanes. Suspects, and the one send
    that tries a domain again, go apart from the rest: one request in two, as long as there are both.
    """
    domains = sender_holds.domains_of({send.content for send in taken})
    plain: list[BoundSend] = []
    groups: dict[str, list[BoundSend]] = {}
    held: list[tuple[BoundSend, Watched]] = []
    for send in taken:
        domain = watched.get(domains[send.content])
        if domain is None:
            plain.append(send)
        elif domain.left is not None and domain.left > 0:
            held.append((send, domain))
        else:
            groups.setdefault(domain.group, []).append(send)
    chosen = Chosen(plain)
    if groups and (not plain or random.random() < 0.5):  # noqa: S311
        chosen = _apart(channel, groups, domains, watched, held)
        chosen.later += plain
    else:
        chosen.later += [send for group in groups.values() for send in group]
    _set_aside(batch, held, chosen)
    return chosen


def _apart(
    channel: Channel,
    groups: Mapping[str, list[BoundSend]],
    domains: Mapping[int, str],
    watched: Mapping[str, Watched],
    held: list[tuple[BoundSend, Watched]],
) -> Chosen:
    """The first group that may go. A domain whose trial somebody else has taken is held.

    The one with the most domains first: most of them are innocent. Of equals any: while the circuit is open, the same one,
    refused again and again, must not keep the others from closing it.
    """

    def turn(group: Sequence[BoundSend]) -> tuple[int, float]:
        return -len({domains[send.content] for send in group}), random.random()  # noqa: S311

    chosen = Chosen([])
    for group in sorted(groups.values(), key=turn):
        domain = watched[domains[group[0].content]]
        if chosen.sends:
            chosen.later += group
        elif domain.left is None:
            chosen.sends = group
            chosen.on_trial = tuple(sorted({domains[send.content] for send in group}))
        elif sender_holds.may_try(channel, domain.domain):
            chosen.sends, chosen.on_trial = group[:1], (domain.domain,)
            chosen.later += group[1:]
        else:
            held += [(send, replace(domain, left=FIRST_HOLD)) for send in group]
    return chosen


def _set_aside(batch: UUID, held: Sequence[tuple[BoundSend, Watched]], chosen: Chosen) -> None:
    single: dict[int, tuple[Failure, list[UUID]]] = {}
    for send, domain in held:
        if send.blast is None:
            single.setdefault(domain.hold, (domain.why, []))[1].append(send.id)
            chosen.apart.add(send.lane)
        else:
            chosen.later.append(send)
            chosen.waits[send.lane] = (domain.why, domain.left)
    for hold, (why, ids) in single.items():
        sender_holds.set_aside(batch, hold, ids, why)
