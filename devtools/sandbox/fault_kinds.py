"""The faults there are, where each one acts, and what it may be told.

A request passes the phases in this order; `Faults.pick` decides per phase whether a fault strikes:

EDGE     before the key is checked: the request is received but not counted.
REQUEST  after the rate limit, before the body is looked at: any route.
BATCH    after the body is parsed, before the idempotency key is looked up: also replays are hit.
ITEM     while items are checked.
ANSWER   once a batch is accepted or replayed: only the answer suffers.
DELAY    whatever the answer will be, and other faults may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Phase(Enum):
    EDGE = "edge"
    REQUEST = "request"
    BATCH = "batch"
    ITEM = "item"
    ANSWER = "answer"
    DELAY = "delay"


@dataclass(frozen=True, slots=True)
class Param:
    """One field of a fault: `check` answers whether a value will do, `want` says what would."""

    check: Callable[[Any], bool]
    want: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    phase: Phase
    about: str
    params: Mapping[str, Param] = field(default_factory=dict)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _text(*, required: bool = False) -> Param:
    return Param(_is_text, "a text", required)


def _flag() -> Param:
    return Param(lambda value: isinstance(value, bool), "true or false")


#: Every fault may be limited by these.
COMMON: Mapping[str, Param] = {
    "count": Param(_is_whole, "a whole number of requests, at least 1"),
    "seconds": Param(lambda value: _is_number(value) and value > 0, "a number of seconds above 0"),
    "probability": Param(lambda value: _is_number(value) and 0 < value <= 1, "a number above 0, at most 1"),
    "seed": Param(lambda value: isinstance(value, int), "a whole number"),
}

_TEXTS = {"name": _text(), "message": _text()}  # replace the error's own
_ACCEPT = {"accept": _flag()}
_RESET = {"reset": _flag()}
_RETRY_AFTER = Param(
    lambda value: value is None or (_is_number(value) and value >= 0), "seconds, or null for no header"
)

KINDS: Mapping[str, Kind] = {
    "drop_before": Kind(Phase.EDGE, "closes the connection; nothing is accepted", _RESET),
    "401": Kind(Phase.EDGE, "the key was revoked", _TEXTS),
    "403_key": Kind(Phase.EDGE, "the key is invalid", _TEXTS),
    "429": Kind(Phase.EDGE, "too many requests", {"retry_after": _RETRY_AFTER, **_TEXTS}),
    "slow": Kind(
        Phase.DELAY,
        "answers later than usual",
        {"extra_ms": Param(lambda value: _is_number(value) and value > 0, "milliseconds above 0", required=True)},
    ),
    "500": Kind(Phase.REQUEST, "application error; with accept the batch was taken all the same", _ACCEPT | _TEXTS),
    "503": Kind(Phase.REQUEST, "service unavailable; with accept the batch was taken all the same", _ACCEPT | _TEXTS),
    "hang": Kind(Phase.REQUEST, "never answers; with accept the batch was taken", _ACCEPT),
    "403_domain": Kind(
        Phase.BATCH, "a batch with a sender of this domain: not verified", {"domain": _text(required=True)}
    ),
    "403_account": Kind(Phase.BATCH, "the account may not send, whatever the sender", _TEXTS),
    "422": Kind(
        Phase.BATCH,
        "refuses the whole batch, naming no item; optionally only if it contains a text or a sender domain",
        {"contains": _text(), "from_domain": _text(), **_TEXTS},
    ),
    "500_contains": Kind(
        Phase.BATCH,
        "a batch that contains a text in a subject or body: application error",
        {"contains": _text(required=True)},
    ),
    "concurrent_409": Kind(Phase.BATCH, "the original request is still in progress", _TEXTS),
    "bad_item": Kind(
        Phase.ITEM,
        "items whose recipient contains a text are refused",
        {"recipient": _text(required=True), "message": _text()},
    ),
    "cut_body": Kind(Phase.ANSWER, "the accepting answer stops half-way and the connection closes"),
    "too_few_ids": Kind(
        Phase.ANSWER,
        "the accepting answer lacks ids",
        {"missing": Param(_is_whole, "a whole number of ids, at least 1")},
    ),
    "drop_after_accept": Kind(Phase.ANSWER, "accepts, then closes the connection without a byte", _RESET),
}
