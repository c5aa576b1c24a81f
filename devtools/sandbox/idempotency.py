"""Idempotency keys: for 24 hours a key stands for one accepted request.

https://resend.com/docs/dashboard/emails/idempotency-keys. Two things are not documented and chosen here: payloads are
compared by the SHA-256 of their raw bytes, the strictest reading; and only acceptance is remembered, so that a key
whose request was refused is free again.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from devtools.sandbox.accepted import Batch
from devtools.sandbox.errors import IN_PROGRESS, OTHER_PAYLOAD, Refusal
from devtools.sandbox.limits import Clock

KEPT_S = 86_400.0
MAX_KEY = 256


@dataclass(slots=True)
class Entry:
    digest: bytes
    batch: Batch
    at: float
    in_progress: bool = True  # until the original answer has left

    def finish(self) -> None:
        self.in_progress = False


class IdempotencyKeys:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, Entry] = {}  # oldest first

    def look_up(self, key: str, body: bytes) -> Batch | Refusal | None:
        """The batch to answer for again, why not, or None for a new key."""
        self._forget()
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.digest != sha256(body).digest():
            return OTHER_PAYLOAD
        return IN_PROGRESS if entry.in_progress else entry.batch

    def remember(self, key: str, body: bytes, batch: Batch) -> Entry:
        entry = self._entries[key] = Entry(sha256(body).digest(), batch, self._clock())
        return entry

    def _forget(self) -> None:
        oldest = self._clock() - KEPT_S
        while self._entries:
            key = next(iter(self._entries))
            if self._entries[key].at > oldest:
                return
            del self._entries[key]
