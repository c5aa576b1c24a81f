"""A batch before its request: claimed, rendered, turned into bytes, committed. And the same again for a repetition."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.crypto import SealError
from messaging.content import RenderError
from messaging.contents import compiled_contents
from messaging.ledger import claim, record, recover
from messaging.ledger.claim import BoundSend, Take
from messaging.ledger.record import Failure
from messaging.providers.base import Adapter, Item
from messaging.rails import Channel, Rail
from messaging.sealing import open_recipient


@dataclass(frozen=True, slots=True)
class Bound:
    """A batch that is committed and may be sent: exactly these bytes, under this key, by whoever holds this fence."""

    id: UUID
    fence: int
    attempts: int
    body: bytes
    idempotency_key: str
    sends: tuple[BoundSend, ...]
    replay: bool  # an earlier attempt was unknown
    last_error: str = ""


def claim_batch(
    adapter: Adapter, channel: Channel, rail: Rail, batch: UUID, takes: Sequence[Take]
) -> tuple[Bound | None, list[BoundSend]]:
    """Claim up to `takes`, render, commit. Returns the batch, and the sends in it; None if nothing is left to send.

    A send that cannot be rendered fails here, with its dead letter; the others go on.
    """
    now = timezone.now().replace(microsecond=0)
    with transaction.atomic():
        claim.lock_lanes(takes)
        bound: list[BoundSend] = []
        for priority, group in itertools.groupby(takes, key=lambda t: t.priority):
            taken, _ = claim.take(channel, rail, priority, batch, list(group))
            bound += taken
        items, failures = _render(bound, now)
        record.fail(batch, failures)
        bound = [send for send in bound if send.id not in failures]
        if not bound:
            return None, []
        body, fitting = _encode(adapter, items)
        claim.put_back(batch, bound[fitting:])
        bound = bound[:fitting]
        claim.open_batch(
            batch,
            provider=adapter.name,
            channel=channel,
            rail=rail,
            sends=[send.id for send in bound],
            digest=hashlib.sha256(body).digest(),
            idempotency_key=str(batch),
            rendered_at=now,
        )
    return Bound(batch, 1, 1, body, str(batch), tuple(bound), replay=False), bound


@dataclass(frozen=True, slots=True)
class Hopeless:
    """A batch that was taken over and must not be repeated: its sends become ambiguous."""

    id: UUID
    fence: int
    why: Failure


def reopen_batch(adapter: Adapter, batch: UUID) -> Bound | Hopeless | None:
    """Take over a batch whose lease has run out and rebuild its bytes. None: somebody else was faster."""
    with transaction.atomic():
        recovered = recover.take_over(batch)
    if recovered is None:
        return None
    if recovered.too_late:
        return Hopeless(batch, recovered.fence, Failure("replay_too_late", "Too old to be repeated safely."))
    items, failures = _render(recovered.sends, recovered.rendered_at)
    if not items or failures:
        return Hopeless(batch, recovered.fence, Failure("not_reproducible", "It does not render as it did."))
    body = adapter.encode(items)
    if hashlib.sha256(body).digest() != recovered.digest:
        return Hopeless(batch, recovered.fence, Failure("digest_differs", "It does not render to the bytes it was."))
    return Bound(
        batch,
        recovered.fence,
        recovered.attempts,
        body,
        recovered.idempotency_key,
        tuple(recovered.sends),
        replay=True,
        last_error=recovered.last_error,
    )


def _render(sends: Sequence[BoundSend], now: datetime) -> tuple[list[Item], dict[UUID, Failure]]:
    contents = compiled_contents(send.content for send in sends)
    items: list[Item] = []
    failures: dict[UUID, Failure] = {}
    for send in sends:
        content = contents[send.content]
        try:
            to, variables = open_recipient(send.id, send.sealed)
            rendered = content.template.render(variables, now)
        except RenderError as error:
            failures[send.id] = Failure(error.code, error.detail)
        except SealError as error:
            failures[send.id] = Failure("unreadable_recipient", str(error))
        else:
            items.append(
                Item(
                    send_id=send.id,
                    to=to,
                    sender=content.document.sender,
                    subject=rendered.subject,
                    html=rendered.html,
                    text=rendered.text,
                    reply_to=content.document.reply_to,
                    headers=rendered.headers,
                )
            )
    return items, failures


def _encode(adapter: Adapter, items: Sequence[Item]) -> tuple[bytes, int]:
    """The body of as many items as fit into one request, and how many that are: all, or a half, or a quarter …"""
    fitting = len(items)
    while True:
        body = adapter.encode(items[:fitting])
        if len(body) <= adapter.max_body_bytes or fitting == 1:
            return body, fitting
        fitting //= 2
