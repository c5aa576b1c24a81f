"""The second commit of a claim: its sends rendered, turned into bytes, and the batch made ready for its request.

Any one send can fail here, no batch: what it does wrong costs that send. Time and bytes are divided like everything else, evenly
between tenants: who has cheap contents gets all of them into the batch that a costly one has a share of.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db import transaction

from core.db.faults import place_of
from core.security.crypto import SealError, UnknownKey
from messaging.channels.email import RenderError
from messaging.channels.sealing import open_recipient
from messaging.domain.lane import LaneKey
from messaging.ledger import preparing, record
from messaging.ledger.batch import Bound, Formed, Prepared
from messaging.ledger.claim import PREPARING_LEASE, BoundSend, put_back
from messaging.ledger.claims_log import Claim
from messaging.ledger.contents import UNKNOWN_KEY, Compiled, Contents, Unreadable
from messaging.ledger.preparing import LAST_MISHAP, Wait
from messaging.ledger.record import Failure
from messaging.providers.base import Adapter, Item
from messaging.services import sender_domains

log = logging.getLogger(__name__)

#: Seconds of rendering in one batch, of this thread's own time (how busy the machine is must not divide batches): its token
#: has been taken. A usual batch of a hundred takes 2 ms.
RENDER_SECONDS = 0.05
#: Of the thousandths of a batch that a tenant has used: from here on it is its own contents that leave no room.
HEAVY = 200
#: Seconds of wall time after which the lease is renewed: a busy machine may take longer for what fits into the time above.
RENEW_SECONDS = PREPARING_LEASE / 4
#: Seconds that a send waits at first which cannot be opened here, since this process lacks the key; then as long as it has
#: waited already. After `HELD_SECONDS` it is a dead letter: no process has the key.
UNKNOWN_KEY_SECONDS = 5.0
HELD_SECONDS = 3600.0
#: Seconds that a send waits after its first and second mishap.
MISHAP_SECONDS = (2.0, 15.0)


class FencedOut(Exception):
    """The lease of the batch ran out while it was prepared, and its sends were released: nothing was changed here."""


def prepare_batch(adapter: Adapter, formed: Formed) -> Prepared:
    """Render, encode, commit. Raises FencedOut; a database that is away raises its error, and the clock releases the sends."""
    work = _render(formed, adapter.max_body_bytes)
    body, fitting = _encode(adapter, work) if work.items else (b"", 0)
    sends, back = work.rendered[:fitting], [*work.rendered[fitting:], *work.left]
    digest = hashlib.sha256(body).digest()
    server = _commit(formed, work, sends, back, digest)
    if held := sum(not wait.mishap for wait in work.set_aside.values()):
        log.error("sends_unreadable", extra={"batch": formed.id, "items": held, "code": UNKNOWN_KEY})
    left_behind = any(send.lane not in work.waits for send in back)
    if not sends:
        return Prepared(None, work.waits, work.slow, left_behind)
    key = str(formed.id)
    claim = Claim(
        *(formed.id, adapter.name, formed.channel, formed.rail, key, digest, formed.rendered_at),
        sends=[send.id.bytes for send in sends],
    )
    bound = Bound(
        *(formed.id, 1, 1, body, key, tuple(sends)), replay=False, senders=formed.senders, server=server, claim=claim
    )
    return Prepared(bound, work.waits, work.slow, left_behind)


def _render(formed: Formed, max_bytes: int) -> Work:
    work, marked = Work(formed), time.monotonic()
    for send in in_turn(formed.sends, work.spent):
        if formed.suspects or time.monotonic() > marked + RENEW_SECONDS:
            if not preparing.mark(formed.id, send.id if formed.suspects else None):
                raise FencedOut
            marked = time.monotonic()
        work.prepare(send, max_bytes)
    if formed.suspects and not preparing.mark(formed.id, None):
        raise FencedOut
    return work


def _commit(formed: Formed, work: Work, sends: Sequence[BoundSend], back: Sequence[BoundSend], digest: bytes) -> str:
    """Returns the server that committed it. In the usual case this is one statement."""
    ids = [send.id for send in sends]
    if not (back or work.failures or work.set_aside or formed.suspects):
        server = preparing.make_ready(formed.id, ids, digest)
        if server is None:
            raise FencedOut
        return server
    with transaction.atomic():
        server = preparing.make_ready(formed.id, ids, digest) if ids else preparing.hold(formed.id)
        if server is None:
            raise FencedOut
        record.fail(formed.id, work.failures)
        preparing.set_aside(formed.id, work.set_aside)
        put_back(formed.id, back)
        if formed.suspects:
            preparing.acquit([send.id for send in work.rendered])
        if not ids:
            preparing.drop(formed.id)
    return server


# ---------------------------------------------------------------------------------------------------- whose turn


def in_turn(sends: Sequence[BoundSend], spent: dict[int, int]) -> Iterator[BoundSend]:
    """By priority; within one, always the oldest send of the tenant that has used least of the batch so far (`spent`, which the
    caller keeps), then of the one that has had fewest turns."""
    by_priority: dict[int, dict[int, deque[BoundSend]]] = {}
    for send in sorted(sends, key=lambda s: s.id):
        by_priority.setdefault(send.priority, {}).setdefault(send.tenant, deque()).append(send)
    for _, tenants in sorted(by_priority.items()):
        heap = [(spent.get(tenant, 0), 0, waiting[0].id, tenant) for tenant, waiting in tenants.items()]
        heapq.heapify(heap)
        while heap:
            _, turns, _, tenant = heapq.heappop(heap)
            waiting = tenants[tenant]
            yield waiting.popleft()
            if waiting:
                heapq.heappush(heap, (spent.get(tenant, 0), turns + 1, waiting[0].id, tenant))


# ---------------------------------------------------------------------------------------------------- rendering


@dataclass(slots=True)
class Work:
    """`items[i]` is `rendered[i]`; `left` go back to wait for the next request."""

    formed: Formed
    seconds: float = RENDER_SECONDS
    items: list[Item] = field(default_factory=list)
    rendered: list[BoundSend] = field(default_factory=list)
    left: list[BoundSend] = field(default_factory=list)
    failures: dict[UUID, Failure] = field(default_factory=dict)
    set_aside: dict[UUID, Wait] = field(default_factory=dict)
    waits: dict[LaneKey, tuple[Failure, float | None]] = field(default_factory=dict)
    spent: dict[int, int] = field(default_factory=dict)  # tenant → thousandths of a batch
    slow: set[LaneKey] = field(default_factory=set)
    _used: float = 0.0
    _began: float = 0.0
    _size: int = 0
    _contents: Contents = field(init=False)
    _several: bool = field(init=False)
    _allowed: dict[int, frozenset[str]] = field(init=False)

    def __post_init__(self) -> None:
        sends = self.formed.sends
        self._contents = Contents(send.content for send in sends)
        self._several = len({send.tenant for send in sends}) > 1
        self._allowed = sender_domains.allowed({send.tenant for send in sends})

    def prepare(self, send: BoundSend, max_bytes: int) -> None:
        """Render one send, or say what becomes of it. Raises nothing that has to do with it."""
        self._began = started = time.thread_time()
        content: Compiled | None = None
        try:
            content = self._prepare(send, max_bytes)
        except (RenderError, SealError) as error:
            self._failed(send, error)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 — whatever it is, it costs this send, and is told of as a bug
            self._mishap(send, error)
        ended = time.thread_time()
        self._used += ended - started
        if content is not None:
            content.cost.learn(ended - self._began)
            self._pay(send, ended - started, max_bytes)

    def _pay(self, send: BoundSend, seconds: float, max_bytes: int) -> None:
        """What it cost is its tenant's, in thousandths of a batch."""
        item = self.items[-1]
        size = len(item.html or "") + len(item.text or "")
        self._size += size
        share = int(1000 * max(seconds / self.seconds, size / max_bytes))
        self.spent[send.tenant] = self.spent.get(send.tenant, 0) + share

    def _prepare(self, send: BoundSend, max_bytes: int) -> Compiled | None:
        """Its content if it was rendered."""
        if self.items and (self._used > self.seconds or self._size > max_bytes):
            self._leave(send, heavy=self.spent.get(send.tenant, 0) > HEAVY)
            return None
        cold = self._contents.is_cold(send.content)
        content = self._contents[send.content]
        if cold:
            self._began = time.thread_time()
        if isinstance(content, Unreadable):
            self._unreadable(send, content.code, whole_lane=send.blast is not None)
            return None
        if self.items and self._used + content.cost.seconds > self.seconds:
            self._leave(send, heavy=1000 * content.cost.seconds > HEAVY * self.seconds)
            return None
        if content.document.sender_domain not in self._allowed[send.tenant]:
            self._not_allowed(send)
            return None
        item = render(send, content, self.formed.rendered_at)
        self.rendered.append(send)
        self.items.append(item)
        return content

    def _leave(self, send: BoundSend, *, heavy: bool) -> None:
        """It goes another time (one goes through in any case). Its lane goes apart from others if that is its own doing."""
        self.left.append(send)
        if heavy and self._several:
            self.slow.add(send.lane)

    def _failed(self, send: BoundSend, error: RenderError | SealError) -> None:
        if isinstance(error, RenderError):
            self.failures[send.id] = Failure(error.code, error.detail)
        elif isinstance(error, UnknownKey):
            self._unreadable(send, UNKNOWN_KEY, whole_lane=False)
        else:
            self.failures[send.id] = Failure("recipient_damaged", str(error))

    def _unreadable(self, send: BoundSend, code: str, *, whole_lane: bool) -> None:
        """A key that is missing here is there elsewhere: the send waits for that, and nobody waits for it. A blast must not be
        thrown away for its content: the lane waits. A single send whose own content is damaged fails."""
        if whole_lane:
            seconds = UNKNOWN_KEY_SECONDS if code == UNKNOWN_KEY else None
            self._lane_waits(send, Failure(code, "Its content cannot be read here."), seconds)
        elif code != UNKNOWN_KEY:
            self.failures[send.id] = Failure(code, "Its content cannot be read.")
        elif (send.held or 0.0) > HELD_SECONDS:
            self.failures[send.id] = Failure(code, "No worker has had the key that it is sealed with.")
        else:
            seconds = max(UNKNOWN_KEY_SECONDS, send.held or 0.0)
            self.set_aside[send.id] = Wait(Failure(code, "It cannot be read here."), seconds, mishap=False)

    def _not_allowed(self, send: BoundSend) -> None:
        why = Failure("sender_domain_not_allowed", "Its `from` is not in one of your sender domains any more.")
        if send.blast is None:
            self.failures[send.id] = why
        else:
            self._lane_waits(send, why, None)

    def _lane_waits(self, send: BoundSend, why: Failure, seconds: float | None) -> None:
        self.left.append(send)
        self.waits[send.lane] = (why, seconds)

    def _mishap(self, send: BoundSend, error: Exception) -> None:
        log.error("send_not_prepared", extra={"send": send.id, "error": type(error).__name__, "place": place_of(error)})
        why = Failure("cannot_be_prepared", "An error of the platform's own; its operator has been told.")
        if send.mishaps + 1 >= LAST_MISHAP:
            self.failures[send.id] = why
        else:
            self.set_aside[send.id] = Wait(why, MISHAP_SECONDS[send.mishaps], mishap=True)


def render(send: BoundSend, content: Compiled, now: datetime) -> Item:
    """What the provider gets of one send: a pure function of the send, its content and `now`. Raises RenderError, SealError."""
    to, variables = open_recipient(send.id, send.sealed)
    rendered = content.template.render(variables, now)
    return Item(
        send_id=send.id,
        to=to,
        sender=content.document.sender,
        subject=rendered.subject,
        html=rendered.html,
        text=rendered.text,
        reply_to=content.document.reply_to,
        headers=rendered.headers,
    )


def _encode(adapter: Adapter, work: Work) -> tuple[bytes, int]:
    """The body of as many items as fit into one request, and how many that are: all, or a half, or a quarter …

    An item that cannot be encoded is found, and costs only itself.
    """
    try:
        return _fit(adapter, work.items)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 — each is told of below, with the send that it belongs to
        for send, item in zip(work.rendered[:], work.items[:], strict=True):
            try:
                adapter.encode([item])
            except Exception as error:  # noqa: BLE001
                work.rendered.remove(send)
                work.items.remove(item)
                work._mishap(send, error)
    return _fit(adapter, work.items) if work.items else (b"", 0)


def _fit(adapter: Adapter, items: Sequence[Item]) -> tuple[bytes, int]:
    fitting = len(items)
    while True:
        body = adapter.encode(items[:fitting])
        if len(body) <= adapter.max_body_bytes or fitting == 1:
            return body, fitting
        fitting = math.ceil(fitting / 2)
