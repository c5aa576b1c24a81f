"""Adapters of the two kinds that Resend is not, against the same sandbox: its keys are thrown away, so a second request is a
second e-mail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

from core.security.ids import new_id
from messaging.providers.base import Answer, Confirmation, Verdict
from messaging.providers.http.answers import stable_code, unanswered, verdict_of
from messaging.providers.http.client import NoReply, Reply
from messaging.providers.resend.adapter import ResendAdapter


class AtMostOnce(ResendAdapter):
    """A provider that knows no idempotency keys and cannot be asked."""

    confirmation: ClassVar[Confirmation] = Confirmation.AT_MOST_ONCE

    def send(self, body: bytes, **options: Any) -> Answer:
        return super().send(body, **(options | {"idempotency_key": str(new_id())}))


class Verifiable(AtMostOnce):
    """A provider that knows no idempotency keys, and has a list of what it took."""

    confirmation: ClassVar[Confirmation] = Confirmation.VERIFIABLE
    settle_seconds: ClassVar[float] = 60.0
    endpoints: ClassVar[frozenset[tuple[str, str]]] = ResendAdapter.endpoints | {("GET", "/_sandbox/log")}

    def ask(self, send_ids: Sequence[UUID], *, idempotency_key: str, timeout: float) -> Answer:
        reply = self.http.request("GET", "/_sandbox/log", headers={}, timeout=timeout)
        if isinstance(reply, NoReply):
            return unanswered(reply)
        if reply.status != 200:
            return Answer(verdict_of(reply.status), reply.status, stable_code(None, f"http_{reply.status}"))
        try:
            taken = _taken(reply)
        except (ValueError, KeyError, TypeError):
            return Answer(Verdict.UNKNOWN, reply.status, "unreadable_answer")
        found = tuple(taken.get(str(send)) for send in send_ids)
        verdict = Verdict.NOT_FOUND if None in found else Verdict.ACCEPTED
        return Answer(verdict, reply.status, "" if None not in found else "not_found", provider_ids=found)


def _taken(reply: Reply) -> dict[str, str]:
    # An empty list proves that nothing is there only if it is known to be whole: lines have no end of their own.
    if not reply.complete or not ("content-length" in reply.headers or "transfer-encoding" in reply.headers):
        raise ValueError("the list is cut")
    try:
        lines = [json.loads(line) for line in reply.body.splitlines()]
    except RecursionError as err:
        raise ValueError("a line is nested too deeply") from err
    return {line["tags"]["send_id"]: line["id"] for line in lines}
