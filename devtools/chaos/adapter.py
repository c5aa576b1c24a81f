"""The sandbox as a provider that knows no idempotency keys and cannot be asked: whatever is repeated is sent twice."""

from __future__ import annotations

from typing import ClassVar
from uuid import uuid4

from messaging.providers.base import Answer, Confirmation
from messaging.providers.resend.adapter import ResendAdapter


class AtMostOnceAdapter(ResendAdapter):
    confirmation: ClassVar[Confirmation] = Confirmation.AT_MOST_ONCE

    def send(self, body: bytes, *, items: int, idempotency_key: str, timeout: float) -> Answer:
        return super().send(body, items=items, idempotency_key=str(uuid4()), timeout=timeout)
