"""A batch on its way to its request, as values.

`forming` claims its sends and commits, `preparing` renders them and commits again, `reopening` does the latter for a batch
that is repeated. What comes of all three is a `Bound`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel, Rail
from messaging.ledger.claim import BoundSend
from messaging.ledger.claims_log import Claim
from messaging.ledger.record import Failure

#: Lanes that must wait, why, and for how many seconds. None: as long as a refusal makes them.
Waits = Mapping[LaneKey, tuple[Failure, float | None]]


@dataclass(frozen=True, slots=True)
class Formed:
    """Claimed and committed: these sends are bound to the batch, nothing of them has been looked into.

    `suspects`: preparing one of them has ended a worker before, or failed in a way that nobody foresaw.
    """

    id: UUID
    channel: Channel
    rail: Rail
    sends: tuple[BoundSend, ...]
    rendered_at: datetime
    suspects: bool = False
    senders: tuple[str, ...] = ()  # watched domains, if it holds nothing else: they are on trial


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of a grant. `formed`: the batch, None if nothing was left to send. `apart`: lanes of single sends that must not
    thin others' batches. `locked`: tenants of lanes that somebody is changing. `left_behind`: sends were put back that have to
    go apart."""

    formed: Formed | None
    waits: Waits
    apart: Collection[LaneKey]
    locked: frozenset[int]
    left_behind: bool


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
    senders: tuple[str, ...] = ()  # as in Formed
    settles_in: float | None = None  # VERIFIABLE: the provider is asked; seconds until its "not found" counts
    server: str = ""  # that has committed it (`messaging.ledger.claims_log`)
    claim: Claim | None = None  # a new batch's, to be noted before its request

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(sorted({str(send.tenant) for send in self.sends}))

    @property
    def one_tenant(self) -> bool:
        return len(self.tenants) == 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """`bound`: None if nothing was left to request. `slow`: lanes whose contents take too long to share a batch with other
    tenants. `left_behind`: sends were put back that go with the next request."""

    bound: Bound | None
    waits: Waits = field(default_factory=dict)
    slow: Collection[LaneKey] = ()
    left_behind: bool = False


@dataclass(frozen=True, slots=True)
class Hopeless:
    """A batch that was taken over and must not be repeated: its sends become ambiguous."""

    id: UUID
    fence: int
    why: Failure
