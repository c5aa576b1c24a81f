"""GET sends: query parameters in, a page out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.http import QueryDict

from core.security.crypto import fingerprint
from messaging.api.cursor import read_cursor, write_cursor
from messaging.api.query import UUID_FORM, page_limit, parameters
from messaging.api.sends.fields import shown
from messaging.channels.email.address import parse_address
from messaging.domain.errors import InvalidInput
from messaging.domain.lifecycle import SendStatus
from messaging.ledger.listing import SendFilter, page_of
from messaging.services.submit import parse_category, parse_time

_LIST = "sends"


def list_sends(tenant_id: int, query: QueryDict) -> dict[str, Any]:
    """`{"data": […], "next_cursor"}`. A page may be short, or empty, and have a next one: null alone means the end.

    Raises InvalidInput with the parameter at fault.
    """
    given = parameters(query, _KNOWN)
    limit = page_limit(given)
    given.pop("limit", None)
    cursor = given.pop("cursor", None)
    wanted = SendFilter(
        tenant=tenant_id, **{_FIELDS.get(name, name): _PARSERS[name](raw) for name, raw in given.items()}
    )
    if wanted.created_after and wanted.created_before and wanted.created_after >= wanted.created_before:
        raise InvalidInput("empty_range", "created_before must be later than created_after.", field="created_before")
    filters = _canonical(wanted)
    before = None if cursor is None else read_cursor(cursor, of=_LIST, tenant=tenant_id, filters=filters)
    page = page_of(wanted, before=before, limit=limit)
    if page is None:
        raise InvalidInput("unknown_blast", "There is no such blast of yours.", field="blast")
    after = page.position and write_cursor(page.position, of=_LIST, tenant=tenant_id, filters=filters)
    return {"data": [shown(row) for row in page.rows], "next_cursor": after}


def _status(raw: str) -> SendStatus:
    for status in SendStatus:
        if status == raw:
            return status
    raise InvalidInput("unknown_status", f"status must be one of {', '.join(SendStatus)}.", field="status")


def _blast(raw: str) -> UUID:
    if not UUID_FORM.fullmatch(raw):
        raise InvalidInput("invalid_id", "blast must be the id of a blast.", field="blast")
    return UUID(raw)


def _recipient(raw: str) -> bytes:
    return fingerprint(parse_address(raw, "recipient").canonical)


def _time(name: str) -> Callable[[str], datetime]:
    def parse(raw: str) -> datetime:
        try:
            value = parse_time(raw, name)
        except InvalidInput:
            if " " not in raw:
                raise
            raise InvalidInput(
                "invalid_time", f"{name} holds a space. In a query, a + is written %2B; or use Z.", field=name
            ) from None
        assert value is not None
        return value

    return parse


_PARSERS: dict[str, Callable[[str], Any]] = {
    "status": _status,
    "blast": _blast,
    "category": parse_category,
    "recipient": _recipient,
    "created_after": _time("created_after"),
    "created_before": _time("created_before"),
}
_FIELDS = {"recipient": "fingerprint"}
_KNOWN = (*_PARSERS, "limit", "cursor")


def _canonical(wanted: SendFilter) -> dict[str, str]:
    """The filters as text, equal for equal filters: what a cursor is bound to."""
    said = {}
    for name in (field.name for field in fields(wanted)):
        match getattr(wanted, name):
            case None:
                continue
            case bytes() as value:
                said[name] = value.hex()
            case datetime() as value:
                said[name] = value.astimezone(UTC).isoformat()
            case value:
                said[name] = str(value)
    return said
