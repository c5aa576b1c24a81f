"""A batch before its request: claimed, rendered, turned into bytes, committed. And the same again for a repetition."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.crypto import SealError, UnknownKey
from messaging.content import RenderError
from messaging.contents import UNKNOWN_KEY, Contents, Unreadable
from messaging.dispatch.by_sender import Chosen, by_sender
from messaging.ledger import claim, lost_claims, record, recover, senders
from messaging.ledger.claim import LEASE, BoundSend, Take
from messaging.ledger.claims_log import Claim
from messaging.ledger.lanes import LaneKey
from messaging.ledger.record import Failure
from messaging.ledger.recover import Recovered
from messaging.providers.base import Adapter, Confirmation, Item
from messaging.rails import Channel, Rail
from messaging.sealing import open_recipient

#: Seconds of compiling and rendering in one claim: it holds lane locks and a token. A usual batch of a hundred takes 2 ms.
RENDER_SECONDS = 0.05
#: Seconds for which a lane waits whose encryption key this process lacks: another one may have it.
UNKNOWN_KEY_SECONDS = 5.0


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
    senders: tuple[str, ...] = ()  # watched domains, if it holds nothing else: they are on trial
    settles_in: float | None = None  # VERIFIABLE: the provider is asked; seconds until its "not found" counts
    server: str = ""  # that has committed it (`messaging.ledger.claims_log`)
    claim: Claim | None = None  # a new batch's, to be noted before its request


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of a grant. `bound`: the batch, None if nothing was left to send. `waits`: lanes that must wait, with the
    seconds (None: as long as a refusal makes them); their sends were put back. `apart`: lanes of single sends that must not
    thin others' batches. `locked`: tenants of lanes that somebody is changing. `left_behind`: sends were put back that only
    did not fit, or have to go apart."""

    bound: Bound | None
    waits: Mapping[LaneKey, tuple[Failure, float | None]]
    apart: Collection[LaneKey]
    locked: frozenset[int]
    left_behind: bool


def claim_batch(adapter: Adapter, channel: Channel, rail: Rail, batch: UUID, takes: Sequence[Take]) -> Claimed:
    """Claim up to `takes`, render, commit. A send that cannot be rendered fails here, with its dead letter; the others
    go on. What does not fit into one request, or takes too long to render, goes back to wait for the next."""
    watched = senders.watched(channel)
    now = timezone.now().replace(microsecond=0)
    with transaction.atomic():
        held = claim.lock_lanes(takes)
        locked = frozenset(t.tenant for t in takes) - {t.tenant for t in held}
        taken: list[BoundSend] = []
        for priority, group in itertools.groupby(held, key=lambda t: t.priority):
            taken += claim.take(channel, rail, priority, batch, list(group))[0]
        chosen = by_sender(channel, batch, _in_turn(taken), watched) if watched else Chosen(_in_turn(taken))
        work = _render(chosen.sends, now, max_bytes=adapter.max_body_bytes, seconds=RENDER_SECONDS)
        record.fail(batch, work.failures)
        body, fitting = _encode(adapter, work.items) if work.items else (b"", 0)
        bound, rest = work.rendered[:fitting], [*work.rendered[fitting:], *work.left, *chosen.later]
        claim.put_back(batch, rest)
        waits = {lane: (why, _unreadable_for(why)) for lane, why in work.unreadable.items()} | chosen.waits
        outcome = Claimed(None, waits, chosen.apart, locked, bool(chosen.later) or (bool(rest) and not waits))
        if not bound:
            return outcome
        noted = Claim(
            *(batch, adapter.name, channel, rail, str(batch), hashlib.sha256(body).digest(), now),
            sends=[send.id.bytes for send in bound],
        )
        server = claim.open_batch(
            batch,
            provider=adapter.name,
            channel=channel,
            rail=rail,
            sends=[send.id for send in bound],
            digest=noted.digest,
            idempotency_key=noted.idempotency_key,
            rendered_at=now,
        )
    return replace(
        outcome,
        bound=Bound(
            *(batch, 1, 1, body, str(batch), tuple(bound)),
            replay=False,
            senders=chosen.on_trial,
            server=server,
            claim=noted,
        ),
    )


def _unreadable_for(why: Failure) -> float | None:
    return UNKNOWN_KEY_SECONDS if why.code == UNKNOWN_KEY else None


def _in_turn(sends: Sequence[BoundSend]) -> list[BoundSend]:
    """By priority, then the tenants' first sends, their second ones …: if not all fit, all tenants have some that do."""
    turn: dict[tuple[int, int], int] = {}
    ordered: list[tuple[int, int, UUID, BoundSend]] = []
    for send in sorted(sends, key=lambda s: s.id):
        place = turn[send.priority, send.tenant] = turn.get((send.priority, send.tenant), -1) + 1
        ordered.append((send.priority, place, send.id, send))
    return [send for *_, send in sorted(ordered)]


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

    def hopeless(code: str, detail: str) -> Hopeless:
        lost = recovered.last_error == lost_claims.CODE  # which tells more
        return Hopeless(batch, recovered.fence, Failure(lost_claims.CODE if lost else code, detail))

    if adapter.confirmation is Confirmation.AT_MOST_ONCE:
        return hopeless("cannot_be_repeated", "The provider may have it, and would send it again.")
    if recovered.too_late:
        return hopeless("replay_too_late", "Too old to be repeated safely.")
    if adapter.confirmation is Confirmation.VERIFIABLE:
        return _reopened(recovered, b"", settles_in=LEASE + adapter.settle_seconds - recovered.age)
    work = _render(recovered.sends, recovered.rendered_at)
    if any(why.code == UNKNOWN_KEY for why in work.unreadable.values()):
        return None  # a worker that has the key takes it when this lease has run out
    if not work.items or len(work.items) != len(recovered.sends):
        return hopeless("not_reproducible", "It does not render as it did.")
    body = adapter.encode(work.items)
    if hashlib.sha256(body).digest() != recovered.digest:
        return hopeless("digest_differs", "It does not render to the bytes it was.")
    return _reopened(recovered, body)


def _reopened(recovered: Recovered, body: bytes, settles_in: float | None = None) -> Bound:
    return Bound(
        recovered.id,
        recovered.fence,
        recovered.attempts,
        body,
        recovered.idempotency_key,
        tuple(recovered.sends),
        replay=True,
        last_error=recovered.last_error,
        settles_in=settles_in,
        server=recovered.server,
    )


@dataclass(slots=True)
class _Work:
    """`items[i]` is `rendered[i]`; `left` was not rendered, or cannot be read here."""

    items: list[Item] = field(default_factory=list)
    rendered: list[BoundSend] = field(default_factory=list)
    left: list[BoundSend] = field(default_factory=list)
    failures: dict[UUID, Failure] = field(default_factory=dict)
    unreadable: dict[LaneKey, Failure] = field(default_factory=dict)


def _render(
    sends: Sequence[BoundSend], now: datetime, *, max_bytes: float = math.inf, seconds: float = math.inf
) -> _Work:
    """Render `sends` in their order, until about `max_bytes` or `seconds` are used up (one goes through in any case)."""
    contents = Contents(send.content for send in sends)
    work, size, deadline = _Work(), 0, time.monotonic() + seconds
    for i, send in enumerate(sends):
        if work.items and (size > max_bytes or time.monotonic() > deadline):
            work.left += sends[i:]
            break
        content = contents[send.content]
        if isinstance(content, Unreadable):
            _unreadable(work, send, content.code)
            continue
        try:
            to, variables = open_recipient(send.id, send.sealed)
            rendered = content.template.render(variables, now)
        except RenderError as error:
            work.failures[send.id] = Failure(error.code, error.detail)
        except UnknownKey:
            _unreadable(work, send, UNKNOWN_KEY)
        except SealError as error:
            work.failures[send.id] = Failure("recipient_damaged", str(error))
        else:
            size += len(rendered.html or "") + len(rendered.text or "")
            work.rendered.append(send)
            work.items.append(
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
    return work


def _unreadable(work: _Work, send: BoundSend, code: str) -> None:
    """A key that is missing here is there elsewhere, and a blast must not be thrown away for one row that cannot be read:
    they wait. A single send whose own content is damaged fails: nothing but a look at its dead letter helps it."""
    if code == UNKNOWN_KEY or send.blast is not None:
        work.left.append(send)
        work.unreadable[send.lane] = Failure(code, "Its content cannot be read here.")
    else:
        work.failures[send.id] = Failure(code, "Its content cannot be read.")


def _encode(adapter: Adapter, items: Sequence[Item]) -> tuple[bytes, int]:
    """The body of as many items as fit into one request, and how many that are: all, or a half, or a quarter …"""
    fitting = len(items)
    while True:
        body = adapter.encode(items[:fitting])
        if len(body) <= adapter.max_body_bytes or fitting == 1:
            return body, fitting
        fitting //= 2
