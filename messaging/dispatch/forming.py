"""The first commit of a claim: which sends are bound to the batch. Nothing that a tenant has made is looked into."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from messaging.domain.rails import Channel, Rail
from messaging.isolation.partition import Chosen, by_sender
from messaging.ledger import claim, sender_holds
from messaging.ledger.batch import Claimed, Formed
from messaging.ledger.claim import BoundSend, Take
from messaging.providers.base import Adapter


def form_batch(adapter: Adapter, channel: Channel, rail: Rail, batch: UUID, takes: Sequence[Take]) -> Claimed:
    """Claim up to `takes`, put back what must not go together, commit."""
    watched = sender_holds.watched(channel)
    now = timezone.now().replace(microsecond=0)
    with transaction.atomic():
        held = claim.lock_lanes(takes)
        locked = frozenset(t.tenant for t in takes) - {t.tenant for t in held}
        taken: list[BoundSend] = []
        for priority, group in itertools.groupby(held, key=lambda t: t.priority):
            taken += claim.take(channel, rail, priority, batch, list(group))[0]
        kin, later = _kin(taken)
        chosen = by_sender(channel, batch, kin, watched) if watched else Chosen(kin)
        later += chosen.later
        claim.put_back(batch, later)
        formed = None
        if chosen.sends:
            suspects = chosen.sends[0].mishaps > 0
            formed = Formed(batch, channel, rail, tuple(chosen.sends), now, suspects, senders=chosen.on_trial)
            ids = [send.id for send in chosen.sends]
            claim.open_batch(batch, provider=adapter.name, channel=channel, rail=rail, sends=ids, rendered_at=now)
    return Claimed(formed, chosen.waits, chosen.apart, locked, left_behind=bool(later))


def _kin(taken: Sequence[BoundSend]) -> tuple[list[BoundSend], list[BoundSend]]:
    """Those that may be prepared together, and the others: all without a mishap, or those with one, or one with more.

    By chance, as long as there are several kinds: none waits for ever, whatever else is due.
    """
    ordered = sorted(taken, key=lambda send: send.id)
    groups = [
        [send for send in ordered if not send.mishaps],
        [send for send in ordered if send.mishaps == 1],
        [send for send in ordered if send.mishaps > 1][:1],
    ]
    group = random.choice([group for group in groups if group] or [[]])  # noqa: S311
    chosen = {send.id for send in group}
    return group, [send for send in ordered if send.id not in chosen]
