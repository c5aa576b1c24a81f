"""What an answer of Resend's batch endpoint proves.

By status first, then by name: names overlap (`validation_error` comes with 400, 401, 403 and 422) and new ones appear.
Facts: https://resend.com/docs/api-reference/errors and …/emails/send-batch-emails, read 2025–2026; the older and the
newer version of the errors page disagree about a bad key (403 `invalid_api_key`; 400 or 401 `validation_error`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from messaging.providers.base import Answer, ItemError, Verdict
from messaging.providers.http.answers import limit_hint, provider_id, retry_after, stable_code, verdict_of
from messaging.providers.http.client import Reply
from messaging.providers.redact import redact

_QUOTAS = frozenset({"daily_quota_exceeded", "monthly_quota_exceeded"})
_KEY_NAMES = re.compile(
    r"(missing|invalid|restricted|suspended|revoked|expired)_api_key|api_key_\w+"
    r"|suspended_(account|team)|(account|team)_suspended"
)
#: "API key is invalid", "This API key is …", "Your API key has been …", "Missing API key in …". Only at the beginning:
#: further on a message may quote what a tenant wrote, and a tenant must not be able to open the circuit for everybody.
_KEY_MESSAGE = re.compile(r"(?:(?:the|this|your|missing|invalid|suspended|revoked|expired) ){0,2}api[ _]key\b", re.I)


def read_answer(reply: Reply, items: int, api_key: str) -> Answer:
    """The answer to a batch of `items`. Raises nothing, whatever the provider wrote."""
    limit = limit_hint(reply.headers)
    if 200 <= reply.status < 300:
        taken = _read_taken(reply, items, api_key)
        return Answer(
            taken.verdict,
            http_status=reply.status,
            code=taken.code,
            provider_ids=taken.provider_ids,
            item_errors=taken.item_errors,
            limit=limit,
        )
    error = _error(reply)
    code = stable_code(error.get("name"), f"http_{reply.status}")
    message = error.get("message")
    return Answer(
        _verdict(reply.status, code, message if isinstance(message, str) else ""),
        http_status=reply.status,
        code=code,
        detail=redact(message, secrets=[api_key]),
        retry_after=retry_after(reply.headers),
        limit=limit,
    )


def _verdict(status: int, code: str, message: str) -> Verdict:
    if status == 429 and code in _QUOTAS:
        return Verdict.QUOTA
    if status == 409 and code == "invalid_idempotent_request":
        return Verdict.KEY_CONFLICT
    if status in (400, 403) and _names_the_key(code, message):
        return Verdict.CREDENTIAL
    return verdict_of(status)


def _names_the_key(code: str, message: str) -> bool:
    if _KEY_NAMES.fullmatch(code):
        return True
    return code == "validation_error" and _KEY_MESSAGE.match(message) is not None


def _error(reply: Reply) -> Mapping[str, Any]:
    """`{"statusCode", "message", "name"}`, or nothing: the status counts also if the words cannot be read."""
    try:
        error = reply.json()
    except ValueError:
        return {}
    return error if isinstance(error, dict) else {}


@dataclass(frozen=True, slots=True)
class _Taken:
    verdict: Verdict
    code: str = ""
    provider_ids: tuple[str | None, ...] = ()
    item_errors: Mapping[int, ItemError] = field(default_factory=dict)


def _read_taken(reply: Reply, items: int, api_key: str) -> _Taken:
    """`{"data": [{"id"}], "errors": [{"index", "message"}]}`; `data` holds the accepted ones, in the items' order.

    `errors` may be absent. An id can be given to its item only if all ids and all errors are there.
    """
    try:
        answer = reply.json()
    except ValueError:
        return _Taken(Verdict.UNKNOWN, "unreadable_answer")
    if not isinstance(answer, dict) or not isinstance(answer.get("data"), list):
        return _Taken(Verdict.UNKNOWN, "unreadable_answer")
    ids = [provider_id(entry.get("id")) if isinstance(entry, dict) else None for entry in answer["data"]]
    errors = _item_errors(answer.get("errors"), items, api_key)
    if errors is None or None in ids or len(set(ids)) < len(ids) or len(ids) + len(errors) != items:
        return _Taken(Verdict.MISCOUNTED, "miscounted_answer")
    left = iter(ids)
    aligned = tuple(None if index in errors else next(left) for index in range(items))
    return _Taken(Verdict.ACCEPTED, provider_ids=aligned, item_errors=errors)


def _item_errors(found: object, items: int, api_key: str) -> dict[int, ItemError] | None:
    """By index. None if they name an item twice, or one that is not there, or none."""
    if found is None:
        return {}
    if not isinstance(found, list):
        return None
    errors: dict[int, ItemError] = {}
    for entry in found:
        index = entry.get("index") if isinstance(entry, dict) else None
        if type(index) is not int or not 0 <= index < items or index in errors:
            return None
        errors[index] = ItemError(
            code=stable_code(entry.get("name"), "item_rejected"), detail=redact(entry.get("message"), secrets=[api_key])
        )
    return errors
