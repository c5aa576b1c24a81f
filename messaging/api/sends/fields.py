"""Sends in and out of JSON: which fields there are, what they become, and what is shown of a send."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from messaging.domain.errors import InvalidInput, NotFound
from messaging.ledger.cancel import cancel_send
from messaging.ledger.listing import COLUMNS
from messaging.models import Send
from messaging.services.submit import SendRequest

REQUIRED = ("to", "from", "subject", "category")
OPTIONAL = ("channel", "reply_to", "html", "text", "headers", "variables", "not_before", "expires_at")

#: Fields that people look for, and why there are none. Better told than found out.
_REFUSED = {
    "attachments": (
        "attachments_not_supported",
        "Attachments are not supported: providers take none in a batch. Host the file and link to it.",
    ),
    "rail": ("rail_not_choosable", "The rail cannot be chosen: it follows from the category. Leave rail out."),
}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def parse_send(body: Mapping[str, Any], idempotency_key: str | None) -> SendRequest:
    """The request that `body` makes. Values are checked by `submit`; here, that the fields are the known ones.

    null counts as absent. `category` must be given: a forgotten one would put marketing on the rail of the login codes.
    """
    refuse_unknown(body, (*REQUIRED, *OPTIONAL))
    given = {name: value for name, value in body.items() if value is not None}
    for name in REQUIRED:
        if name not in given:
            raise InvalidInput("missing_field", f"{name} is required.", field=name)
    sender = given.pop("from")
    return SendRequest(from_=sender, idempotency_key=idempotency_key, **given)


def refuse_unknown(body: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise InvalidInput for the first field that is not one of `known`."""
    for name in body:
        if name in known:
            continue
        if name in _REFUSED:
            code, message = _REFUSED[name]
            raise InvalidInput(code, message, field=name)
        # The name is the caller's text: cut, and without what could hide in a log viewer or terminal.
        shown = re.sub(r"[^A-Za-z0-9_.-]", "?", name[:60]) or "(empty)"
        raise InvalidInput("unknown_field", f"There is no field {shown}. Known: {', '.join(known)}.", field=shown)


def parse_id(raw: str) -> UUID:
    """NotFound for what is no id: it is no send either."""
    if not _UUID.fullmatch(raw):
        raise NotFound("not_found", "There is no such send of yours.")
    return UUID(raw)


def find_send(tenant_id: int, raw_id: str) -> dict[str, Any]:
    """What the tenant may see of its send: no address, no content. NotFound also for another tenant's, or a non-id."""
    row = next(iter(Send.objects.filter(pk=parse_id(raw_id), tenant_id=tenant_id).values(*COLUMNS)[:1]), None)
    if row is None:
        raise NotFound("not_found", "There is no such send of yours.")
    return shown(row)


def cancel(tenant_id: int, raw_id: str) -> tuple[dict[str, Any], bool]:
    """The send, cancelled, and whether it was this call that did it. Raises as `ledger.cancel.cancel_send`."""
    done = cancel_send(tenant_id, parse_id(raw_id))
    return find_send(tenant_id, raw_id), done


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A send as it is answered, from its `COLUMNS`."""
    send = dict(row)
    code, detail = send.pop("error_code"), send.pop("error_detail")
    send["error"] = {"code": code, "detail": detail or ""} if code else None
    for name in ("id", "blast_id"):
        send[name] = send[name] and str(send[name])
    for name in ("created_at", "not_before", "expires_at", "accepted_at"):
        send[name] = send[name] and send[name].isoformat()
    return send
