"""E-mail through Resend, and only through its batch endpoint.

https://resend.com/docs/api-reference/emails/send-batch-emails (100 items, no attachments), idempotency keys:
https://resend.com/docs/dashboard/emails/idempotency-keys (1–256 characters, kept 24 hours).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from django.conf import settings

from messaging.domain.rails import Channel
from messaging.providers.base import Answer, Confirmation, Item, Verdict
from messaging.providers.http.answers import unanswered
from messaging.providers.http.client import HttpAdapter, NoReply
from messaging.providers.resend.answers import read_answer


class ResendAdapter(HttpAdapter):
    """Settings: RESEND_API_KEY, RESEND_BASE_URL; read here and nowhere else, once, unless given."""

    name: ClassVar[str] = "resend"
    channel: ClassVar[Channel] = Channel.EMAIL
    max_batch: ClassVar[int] = 100
    # Documented are 40 MB for an e-mail with its attachments, and nothing for a batch. This is a bound of our own: what
    # a slow uplink carries within the deadline of a request.
    max_body_bytes: ClassVar[int] = 10 * 1024 * 1024
    confirmation: ClassVar[Confirmation] = Confirmation.IDEMPOTENT
    # Never contacts, audiences, segments, topics or broadcasts: recipients live in the ledger alone.
    endpoints: ClassVar[frozenset[tuple[str, str]]] = frozenset(
        {("POST", "/emails/batch"), ("GET", "/emails"), ("GET", "/emails/*")}
    )

    def __init__(self, *, api_key: str | None = None, base_url: str | None = None) -> None:
        super().__init__(settings.RESEND_BASE_URL if base_url is None else base_url)
        self._api_key = (settings.RESEND_API_KEY if api_key is None else api_key).strip()

    def encode(self, items: Sequence[Item]) -> bytes:
        if not 1 <= len(items) <= self.max_batch:
            raise ValueError(f"a batch holds 1 to {self.max_batch} items, not {len(items)}")
        text = json.dumps([_email(item) for item in items], ensure_ascii=False, separators=(",", ":"))
        # A lone surrogate has no UTF-8. Python's `\udc80` for it is JSON's escape as well, and reads back as the same.
        return text.encode("utf-8", "backslashreplace")

    def send(self, body: bytes, *, items: int, idempotency_key: str, timeout: float) -> Answer:
        if not (1 <= len(idempotency_key) <= 256 and idempotency_key.isascii() and idempotency_key.isprintable()):
            raise ValueError("an idempotency key has 1 to 256 printable ASCII characters")
        if not self._api_key:
            return Answer(Verdict.CREDENTIAL, code="missing_api_key", detail="RESEND_API_KEY is not set.")
        if not (self._api_key.isascii() and self._api_key.isprintable()):
            return Answer(Verdict.CREDENTIAL, code="malformed_api_key", detail="RESEND_API_KEY cannot be a key.")
        reply = self.http.request(
            "POST",
            "/emails/batch",
            headers={
                "Authorization": f"Bearer {self._api_key}",
                "Content-Type": "application/json",
                "Idempotency-Key": idempotency_key,
                # Items are judged one by one; in the strict mode one bad address would refuse the batch of a hundred.
                "x-batch-validation": "permissive",
            },
            body=body,
            timeout=timeout,
        )
        return unanswered(reply) if isinstance(reply, NoReply) else read_answer(reply, items, self._api_key)


def _email(item: Item) -> dict[str, Any]:
    """One element of the array. The order of the keys is part of the contract: a replay must give the same bytes."""
    email: dict[str, Any] = {"from": item.sender, "to": [item.to], "subject": item.subject}
    if item.html is not None:
        email["html"] = item.html
    if item.text is not None:
        email["text"] = item.text
    if item.reply_to:
        email["reply_to"] = list(item.reply_to)
    if item.headers:
        # Sorted: equal mappings may differ in order (a JSONB column has an order of its own).
        email["headers"] = dict(sorted(item.headers.items()))
    # Comes back with every event, so that a send is found even if this request's answer is lost.
    email["tags"] = [{"name": "send_id", "value": str(item.send_id)}]
    return email
