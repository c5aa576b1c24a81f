"""What adapters over HTTP have in common: what a status proves by itself, and how the usual headers are read."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

from messaging.providers.base import Answer, LimitHint, Verdict
from messaging.providers.http.client import NoReply

#: Seconds. A provider that asks for more than a day is asked again after a day.
MAX_RETRY_AFTER = 86_400.0

_DECIMAL = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)
_PROVIDER_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)


def unanswered(lost: NoReply) -> Answer:
    """The answer that did not come: unknown from the first byte on, not sent before."""
    return Answer(Verdict.UNKNOWN if lost.wrote else Verdict.NOT_SENT, code=lost.code, detail=lost.detail)


def verdict_of(status: int) -> Verdict:
    """What a status other than 2xx proves if nothing more is known (RFC 9110, section 15; RFC 6585, section 4).

    A 2xx gives UNKNOWN: what was accepted stands in the body, and whoever cannot read it knows nothing.
    """
    if status == 401:
        return Verdict.CREDENTIAL
    if status == 403:
        return Verdict.SENDER_REFUSED
    if status == 429:
        return Verdict.RATE_LIMITED
    if status == 409:  # a conflict with what the provider has of us already
        return Verdict.IN_PROGRESS
    if 400 <= status < 500 and status != 408:  # 408 may speak of a request that is being worked on
        return Verdict.REFUSED
    return Verdict.UNKNOWN


def stable_code(name: object, otherwise: str) -> str:
    """A provider's name for an error, if it can serve as one (it becomes a metric label), or `otherwise`."""
    return name if isinstance(name, str) and _NAME.fullmatch(name) else otherwise


def provider_id(found: object) -> str | None:
    """A provider's id for a send, if it is one that can be stored and asked for: 1 to 128 visible ASCII characters."""
    return found if isinstance(found, str) and _PROVIDER_ID.fullmatch(found) else None


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds to wait by `Retry-After`: seconds or an HTTP date (RFC 9110, section 10.2.3), at most MAX_RETRY_AFTER.

    None if it is absent, unreadable or past. `now` is the Unix time, for tests.
    """
    text = headers.get("retry-after", "").strip()
    seconds = _decimal(text)
    if seconds is None:
        try:
            date = parsedate_to_datetime(text)
            date = date if date.tzinfo else date.replace(tzinfo=UTC)
            seconds = date.timestamp() - (time.time() if now is None else now)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        if seconds <= 0:
            return None
    return min(seconds, MAX_RETRY_AFTER)


def limit_hint(headers: Mapping[str, str]) -> LimitHint | None:
    """The `ratelimit-*` headers (draft-ietf-httpapi-ratelimit-headers-06), as far as they can be read."""
    limit, remaining, reset = (
        _decimal(headers.get(f"ratelimit-{name}", "")) for name in ("limit", "remaining", "reset")
    )
    if limit is None and remaining is None and reset is None:
        return None
    return LimitHint(limit=limit, remaining=remaining, reset_seconds=reset)


def _decimal(text: str) -> float | None:
    """A plain number, not negative. `float` would also take "nan", "inf", "1e9" and "1_0"."""
    return float(text) if _DECIMAL.fullmatch(text.strip()) else None
