"""Blasts in and out of JSON: which fields there are, what they become, and what is shown of a blast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import QueryDict
from django.utils import timezone

from core.models import Tenant
from core.security.crypto import keyed_digest
from core.security.hashing import canonical_json
from messaging.api.cursor import read_cursor, write_cursor
from messaging.api.query import UUID_FORM, page_limit, parameters
from messaging.api.sends.fields import refuse_unknown
from messaging.domain.errors import InvalidInput, NotFound, TooLarge
from messaging.domain.lifecycle import BlastState, SendStatus
from messaging.ledger.contents import compiled_content
from messaging.ledger.counts import BlastFacts, blast_facts, newest_blasts
from messaging.models import Blast
from messaging.planner.create import create_blast
from messaging.planner.draft import Draft, require_may_send
from messaging.services.allowances import Allowance
from messaging.services.launch import launch_blast

REQUIRED = ("from", "subject", "category")
OPTIONAL = (
    *("channel", "reply_to", "html", "text", "headers", "name", "not_before", "expires_at"),
    *("recipients", "launch"),
)

#: Recipients of one request. They are one transaction, which must not take minutes.
MAX_RECIPIENTS = 100_000

_LIST = "blasts"


@dataclass(frozen=True, slots=True)
class NewBlast:
    draft: Draft
    recipients: list[object] | None
    launch: bool
    digest: bytes


def parse_blast(body: Mapping[str, Any], idempotency_key: str | None) -> NewBlast:
    """The blast that `body` makes. null counts as absent. Raises InvalidInput, TooLarge with the field at fault."""
    refuse_unknown(body, (*REQUIRED, *OPTIONAL))
    given = {name: value for name, value in body.items() if value is not None}
    for name in REQUIRED:
        if name not in given:
            raise InvalidInput("missing_field", f"{name} is required.", field=name)
    digest = b"" if idempotency_key is None else keyed_digest(canonical_json({"http": given}))
    recipients, launch = given.pop("recipients", None), given.pop("launch", False)
    if recipients is not None and not isinstance(recipients, list):
        raise InvalidInput("invalid_type", "recipients must be a list of {to, variables}.", field="recipients")
    if recipients is not None and len(recipients) > MAX_RECIPIENTS:
        raise TooLarge(
            "too_many_recipients",
            f"A blast is made with at most {MAX_RECIPIENTS:,} recipients. Make it empty, and upload them.",
            field="recipients",
        )
    if not isinstance(launch, bool):
        raise InvalidInput("invalid_type", "launch must be true or false.", field="launch")
    if launch and recipients is None:
        raise InvalidInput(
            "no_recipients", "There is nobody to send to yet: add recipients, then launch the blast.", field="launch"
        )
    defaults: dict[str, Any] = {"channel": "email", "name": ""}
    fields = ("subject", "category", *OPTIONAL[:-2])
    values = {name: given.get(name, defaults.get(name)) for name in fields}
    draft = Draft.parse(from_=given["from"], idempotency_key=idempotency_key, **values)
    return NewBlast(draft, recipients, launch, digest)


def make_blast(tenant: Tenant, new: NewBlast, allowance: Allowance) -> tuple[dict[str, Any], bool]:
    """The new blast as it is shown, and whether that is the answer of an earlier request. Raises as `create_blast`."""
    return create_blast(
        tenant,
        new.draft,
        recipients=new.recipients,
        launch=new.launch,
        digest=new.digest,
        allowance=allowance,
        answer=lambda blast_id: find_blast(tenant.pk, blast_id),
    )


def parse_id(raw: str) -> UUID:
    """NotFound for what is no id: it is no blast either."""
    if not UUID_FORM.fullmatch(raw):
        raise NotFound("unknown_blast", "There is no such blast of yours.")
    return UUID(raw)


def find_blast(tenant_id: int, blast_id: UUID) -> dict[str, Any]:
    """NotFound also for another tenant's."""
    facts = blast_facts(tenant_id, blast_id)
    if facts is None:
        raise NotFound("unknown_blast", "There is no such blast of yours.")
    return shown(facts, timezone.now())


def launch(tenant: Tenant, blast_id: UUID, allowance: Allowance) -> None:
    """Raises NotFound, Forbidden, InvalidInput `no_valid_recipients`, Conflict (also if it was launched before)."""
    blast = Blast.objects.select_related("content").filter(pk=blast_id, tenant=tenant).first()
    if blast is None:
        raise NotFound("unknown_blast", "There is no such blast of yours.")
    require_may_send(tenant, blast.content.from_domain, blast.category, allowance)
    compiled_content(blast.content)
    launch_blast(blast_id, tenant_id=tenant.pk, again=False)


def list_blasts(tenant_id: int, query: QueryDict) -> dict[str, Any]:
    """`{"data": […], "next_cursor"}`, newest first. Raises InvalidInput with the parameter at fault."""
    given = parameters(query, ("limit", "cursor"))
    limit, cursor = page_limit(given), given.get("cursor")
    before = None if cursor is None else read_cursor(cursor, of=_LIST, tenant=tenant_id, filters={})
    found = newest_blasts(tenant_id, limit + 1, before)
    page, now = found[:limit], timezone.now()
    more = len(found) > limit
    return {
        "data": [shown(facts, now) for facts in page],
        "next_cursor": write_cursor(page[-1].id, of=_LIST, tenant=tenant_id, filters={}) if more else None,
    }


def shown(facts: BlastFacts, now: datetime) -> dict[str, Any]:
    """A blast as it is answered."""
    return {
        "id": str(facts.id),
        "name": facts.name,
        "state": facts.state.value,
        "reason": facts.reason or None,
        "category": facts.category,
        "channel": facts.channel,
        "rail": facts.rail,
        "created_at": _time(facts.created_at),
        "launched_at": _time(facts.launched_at),
        "finished_at": _time(facts.finished_at),
        "not_before": _time(facts.not_before),
        "expires_at": _time(facts.expires_at),
        "uploads": facts.uploads,
        "uploading": facts.uploading,
        "rows": facts.rows,
        "planned": facts.planned,
        "duplicates": facts.duplicates,
        "rejected": facts.rejected,
        "counts": {status.value: n for status, n in facts.counts.items()},
        "rate_per_second": facts.rate,
        "eta_seconds": _eta(facts, now),
        "lane": {"isolated": facts.isolated, "held": _held(facts)},
        "unresolved": facts.counts[SendStatus.AMBIGUOUS],
    }


def _eta(facts: BlastFacts, now: datetime) -> int | None:
    """Seconds until no send is open, if it goes on as in the last minute. None: nobody can say."""
    if facts.finished_at:
        return 0
    held = facts.hold_code and facts.held_until and facts.held_until > now
    if facts.state is not BlastState.RUNNING or held or not facts.rate:
        return None
    return math.ceil(facts.open / facts.rate)


def _held(facts: BlastFacts) -> dict[str, Any] | None:
    if not facts.hold_code:
        return None
    return {"code": facts.hold_code, "detail": facts.hold_detail, "until": _time(facts.held_until)}


def _time(value: datetime | None) -> str | None:
    return value.isoformat() if value else None
