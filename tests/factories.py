"""Rows for tests, made the way the product makes them where that matters, and by plain SQL where it is about numbers."""

from __future__ import annotations

import itertools
from typing import Any
from uuid import UUID

from django.db import connection

from core.models import Tenant
from core.security.ids import new_id
from messaging.channels.email import Document
from messaging.domain.lifecycle import BlastState
from messaging.domain.rails import PRIORITY_OF, RAIL_OF, Category
from messaging.ledger.contents import store_contents
from messaging.models import Blast, BlastHint, Send, SenderDomain, TenantAllowance
from messaging.services.submit import Submitted, submit_many

_numbers = itertools.count(1)


def make_tenant(slug: str | None = None, **values: Any) -> Tenant:
    """A tenant that may send as `<slug>.org`."""
    slug = slug or f"tenant-{next(_numbers)}"
    tenant = Tenant.objects.create(slug=slug, name=slug.title(), **values)
    SenderDomain.objects.create(tenant=tenant, domain=f"{slug}.org")
    return tenant


def allow_blasts(tenant: Tenant, *categories: str, most: int = 1_000_000) -> None:
    """The operator's word that blasts of the tenant may be of `categories` (none named: of any)."""
    TenantAllowance.objects.update_or_create(
        tenant=tenant,
        defaults={"blast_categories": categories or [c.value for c in Category], "max_priority_blast": most},
    )


def request(tenant: Tenant, i: int = 0, **values: Any) -> dict[str, Any]:
    """The arguments of a valid submit, different for each `i`."""
    return {
        "to": f"user{i}@recipients.org",
        "from_": f"App <app@{tenant.slug}.org>",
        "subject": "Your code",
        "text": "Code {{ code }}",
        "variables": {"code": f"{i:06}"},
        "category": "transactional",
    } | values


def submit_some(tenant: Tenant, count: int, **values: Any) -> list[Submitted]:
    return submit_many(tenant, [request(tenant, i, **values) for i in range(count)])


def make_content(tenant: Tenant, **values: Any) -> int:
    parsed = {"from_": f"app@{tenant.slug}.org", "subject": "News", "text": "Hello {{ name }}"} | values
    return store_contents(tenant.pk, [Document.parse(**parsed)])[0]


def make_blast(
    tenant: Tenant, count: int, *, state: str = BlastState.RUNNING, category: str = "marketing", **values: Any
) -> Blast:
    """A blast with `count` queued sends, written by SQL: fast, but their recipients cannot be opened."""
    kind = Category(category)
    blast = Blast.objects.create(
        tenant=tenant,
        content_id=make_content(tenant),
        channel="email",
        category=kind,
        rail=RAIL_OF[kind],
        priority=PRIORITY_OF[kind],
        state=state,
        planned=count,
        **values,
    )
    if count:
        insert_raw(tenant, count, blast=blast)
    if count and state == BlastState.RUNNING:
        hint_due(blast)
    return blast


def hint_due(blast: Blast) -> None:
    """As a launch leaves a blast that has due sends."""
    BlastHint.objects.create(
        blast_id=blast.pk,
        channel=blast.channel,
        rail=blast.rail,
        priority=blast.priority,
        tenant_id=blast.tenant_id,
        has_due=True,
    )


def insert_raw(tenant: Tenant, count: int, *, blast: Blast | None = None, category: str = "marketing") -> None:
    """`count` queued sends by one statement, ids ascending."""
    kind = Category(blast.category if blast else category)
    content = blast.content_id if blast else make_content(tenant)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO messaging_sends (id, tenant_id, blast_id, content_id, channel, category, rail, priority, status,"
            " fingerprint, sealed, attempts)"
            " SELECT overlay(%s::uuid::text placing lpad(to_hex(i), 8, '0') from 29)::uuid, %s, %s, %s, 'email', %s, %s, %s,"
            " 'queued', substring(sha256(int8send(i)) for 16), '\\x00', 0 FROM generate_series(1, %s) i",
            [
                str(new_id()),
                tenant.pk,
                blast.pk if blast else None,
                content,
                kind,
                RAIL_OF[kind],
                PRIORITY_OF[kind],
                count,
            ],
        )


def statuses(**where: Any) -> dict[str, int]:
    """How many sends have which status."""
    found: dict[str, int] = {}
    for status in Send.objects.filter(**where).values_list("status", flat=True):
        found[status] = found.get(status, 0) + 1
    return found


def status_of(send: UUID) -> str:
    return Send.objects.values_list("status", flat=True).get(pk=send)
