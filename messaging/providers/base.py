"""What a provider adapter is: values in, values out, exactly one attempt.

An adapter knows one provider's API and nothing of the database, of retries or of limits. It turns items into bytes
(deterministically: the same items give the same bytes in every process, so that a batch can be repeated under its
idempotency key), sends them once, and says what the answer *proves*. What follows from that is `messaging.dispatch`'s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar
from uuid import UUID

from messaging.domain.rails import Channel


class Confirmation(StrEnum):
    """How an attempt whose answer was lost can be cleared up."""

    IDEMPOTENT = "idempotent"  # repeat the same bytes under the same key: the provider sends once
    VERIFIABLE = "verifiable"  # ask the provider whether it has them (`Adapter.ask`)
    AT_MOST_ONCE = "at_most_once"  # no way: the sends become ambiguous


class Verdict(StrEnum):
    """What an answer proves about the request. `messaging.dispatch` draws the conclusions."""

    ACCEPTED = "accepted"  # taken; `item_errors` may name some that were not
    MISCOUNTED = "miscounted"  # 2xx, but ids + errors ≠ items: which were taken cannot be told
    RATE_LIMITED = "rate_limited"  # not processed; too fast
    QUOTA = "quota"  # not processed; the day's or month's quota is used up
    CREDENTIAL = "credential"  # not processed; the key is missing, wrong or suspended
    SENDER_REFUSED = "sender_refused"  # not processed; the `from` domain (or account) may not send this
    REFUSED = "refused"  # not processed; the request as a whole is not acceptable, no item is named
    IN_PROGRESS = "in_progress"  # it has this request in hand, or one that stands in its way: ask again later
    KEY_CONFLICT = "key_conflict"  # the idempotency key was used with other bytes: that original WAS accepted
    NOT_SENT = "not_sent"  # no byte of the request left this machine
    UNKNOWN = "unknown"  # it may or may not have been processed
    NOT_FOUND = "not_found"  # asked for sends, the provider says that it has none, or not all, of them


@dataclass(frozen=True, slots=True)
class Item:
    """One notification, rendered. Addresses are as the provider shall see them (`Name <local@domain>` is allowed)."""

    send_id: UUID
    to: str
    sender: str
    subject: str
    html: str | None
    text: str | None
    reply_to: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ItemError:
    code: str
    detail: str  # the provider's words, addresses blotted out


@dataclass(frozen=True, slots=True)
class LimitHint:
    """The provider's own count of its limit window, from the headers of an answer."""

    limit: float | None  # requests per window
    remaining: float | None  # requests left in the window
    reset_seconds: float | None  # until the window ends


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `provider_ids[i]` belongs to item i: None where `item_errors` has i, or nothing was accepted.

    The same of a question (`Adapter.ask`), where None means that the provider does not have send i.
    """

    verdict: Verdict
    http_status: int | None = None
    code: str = ""  # stable: the provider's error name, or ours for what never reached it
    detail: str = ""  # the provider's words, addresses blotted out
    provider_ids: tuple[str | None, ...] = ()
    item_errors: Mapping[int, ItemError] = field(default_factory=dict)
    retry_after: float | None = None  # seconds, as the provider asked; None: it did not say
    limit: LimitHint | None = None


class Adapter(ABC):
    """One provider on one channel. Instances are shared by the threads of a process and must be safe for that."""

    name: ClassVar[str]
    channel: ClassVar[Channel]
    max_batch: ClassVar[int]  # items a request may hold
    max_body_bytes: ClassVar[int]  # bytes a request may hold
    confirmation: ClassVar[Confirmation]
    #: VERIFIABLE: seconds after a batch's lease from which the provider's "not found" counts. Until then the request may still
    #: be on its way through the provider.
    settle_seconds: ClassVar[float] = 60.0
    #: Seconds between two tries of sends that did not leave the machine, at most; it begins with 2 and doubles.
    longest_back_off: ClassVar[float] = 300.0
    #: (method, path) of everything that this adapter may call; a `*` in a path is one segment. Any other is refused.
    endpoints: ClassVar[frozenset[tuple[str, str]]]

    @abstractmethod
    def encode(self, items: Sequence[Item]) -> bytes:
        """The body of one request: a pure function of `items`. No clock, no randomness, no setting goes into it."""

    @abstractmethod
    def send(self, body: bytes, *, items: int, idempotency_key: str, timeout: float) -> Answer:
        """One request with `body` (that holds `items` items), answered or given up within `timeout` seconds in all.

        Never repeats, never follows a redirect, and raises nothing for what a network or a provider can do: that is
        what `Answer` is for. An exception is a bug, or an endpoint outside `endpoints`.
        """

    def ask(self, send_ids: Sequence[UUID], *, idempotency_key: str, timeout: float) -> Answer:
        """VERIFIABLE: one request that asks for the sends of a batch, by the ids that their items carried. It sends nothing.

        ACCEPTED if the provider has them all, NOT_FOUND if it surely lacks some; any other verdict: it cannot be told now.
        Otherwise it promises what `send` does.
        """
        raise AssertionError(f"Bug: {self.name} is {self.confirmation} and cannot be asked")
