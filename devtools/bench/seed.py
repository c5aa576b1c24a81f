"""Rows to start from. Called by `devtools.bench.inside`.

Sends that are to be sent are sealed as the product seals them. Those that only make the ledger large are written by one
statement: their recipients cannot be opened, so they must lie behind what is sent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg
from django.db import connection

from core.models import Tenant
from core.security.crypto import fingerprint
from core.security.ids import new_id
from messaging.channels.sealing import seal_recipient
from messaging.domain.errors import Conflict
from messaging.ledger import sweeps as clock_steps
from messaging.models import Blast, SenderDomain
from messaging.planner import launch_blast, plan_blast
from messaging.services.control import cancel_blast
from messaging.services.submit import MAX_MANY, submit, submit_many

_NAMES = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Radia", "Ken")
_HTML = "<p>Dear {{ first_name }},</p><p>the spring list is here. Your code: <b>{{ code }}</b>.</p>"
_COPY = """
COPY messaging_sends (id, tenant_id, blast_id, content_id, channel, category, rail, priority, status, fingerprint, sealed,
                      attempts) FROM STDIN
"""
_FILL = """
INSERT INTO messaging_sends (id, tenant_id, blast_id, content_id, channel, category, rail, priority, status, fingerprint,
                             sealed, attempts)
SELECT overlay(%(base)s::uuid::text placing lpad(to_hex(i), 8, '0') from 29)::uuid, b.tenant_id, b.id, b.content_id,
       b.channel, b.category, b.rail, b.priority, 'queued', substring(sha256(%(base)s::text::bytea || int8send(i)) for 16),
       '\\x00', 0
FROM messaging_blasts b, generate_series(1, %(count)s) i WHERE b.id = %(blast)s
"""
#: As a claim and an acceptance leave them: two dead versions each.
_AGE = (
    "UPDATE messaging_sends SET status = 'sending', batch_id = id WHERE id = ANY (%(ids)s)",
    "UPDATE messaging_sends SET status = 'sent', accepted_at = now() WHERE id = ANY (%(ids)s)",
)


def message(slug: str) -> dict[str, Any]:
    return {"from_": f"News <news@{slug}.example>", "subject": "{{ first_name }}, our spring list", "html": _HTML}


def tenant(slug: str) -> Tenant:
    found, made = Tenant.objects.get_or_create(slug=slug, defaults={"name": slug.title()})
    if made:
        SenderDomain.objects.create(tenant=found, domain=f"{slug}.example")
    return found


def tenant_id(slug: str) -> int:
    return tenant(slug).pk


def blast(slug: str, parts: Sequence[tuple[str, int]], *, launched: bool = False) -> str:
    """A blast of the tenant that is not launched yet, its sends in the order of `parts`: so many that can be sent
    ("real"), so many that cannot ("filler")."""
    who = tenant(slug)
    planned = plan_blast(who, recipients=_people(slug, 1), launch=False, **message(slug))
    found = Blast.objects.get(pk=planned.blast_id)
    for number, (kind, sends) in enumerate(parts):
        if kind == "real":
            _write_real(found, sends, f"{slug}-{number}")
        else:
            with connection.cursor() as cursor:
                cursor.execute(_FILL, {"base": str(new_id()), "count": sends, "blast": found.pk})
    total = 1 + sum(sends for _, sends in parts)
    Blast.objects.filter(pk=found.pk).update(planned=total, rows_read=total)
    if launched:
        launch([str(found.pk)])
    return str(found.pk)


def blasts(sizes: Sequence[int], prefix: str) -> dict[str, str]:
    """A blast that is not launched for each of `sizes`, each of a tenant of its own. Tenant → blast."""
    return {
        f"{prefix}{number}": blast(f"{prefix}{number}", [("real", size - 1)] if size > 1 else [])
        for number, size in enumerate(sizes)
    }


def launch(blast_ids: Sequence[str]) -> float:
    """Launch them; the ledger's time of the first launch."""
    launched = [launch_blast(UUID(pk)) for pk in blast_ids]
    moments = [found.launched_at.timestamp() for found in launched if found.launched_at]
    return min(moments)


def cancel(blast_ids: Sequence[str]) -> None:
    """Nothing more of these is sent. One that is finished is finished."""
    for pk in blast_ids:
        with suppress(Conflict):
            cancel_blast(UUID(pk))


def singles(tenants: int, each: int) -> int:
    """So many marketing sends of so many tenants, each by one `submit_many`."""
    for number in range(tenants):
        slug = f"small{number}"
        submit_many(tenant(slug), [_request(slug, i) for i in range(each)])
    return tenants * each


def submit_all(slug: str, sends: int, category: str = "marketing") -> list[str]:
    """The tenant, made if need be, submits so many sends at once (above `MAX_MANY`: that many at once); their ids."""
    who = tenant(slug)
    return [
        str(sent.id)
        for start in range(0, sends, MAX_MANY)
        for sent in submit_many(who, [_request(slug, i, category) for i in range(start, min(sends, start + MAX_MANY))])
    ]


def codes(slug: str, count: int) -> dict[str, float]:
    """So many login codes, each alone: id → when its `submit` was called, epoch seconds."""
    who, called = tenant(slug), {}
    for number in range(count):
        request = {**_request(slug, number), "category": "transactional"}
        at = time.time()
        called[str(submit(who, **request).id)] = at
        time.sleep(random.uniform(0.15, 0.35))  # not in step with anything that polls
    return called


def age(blast_id: str, claims: int, chunk: int = 100) -> int:
    """As if the first `claims` queued sends of the blast had been claimed, `chunk` by `chunk`, and accepted."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM messaging_sends WHERE blast_id = %s AND status = 'queued' ORDER BY id LIMIT %s",
            [blast_id, claims],
        )
        ids = [pk for (pk,) in cursor.fetchall()]
        for start in range(0, len(ids), chunk):
            for statement in _AGE:
                cursor.execute(statement, {"ids": ids[start : start + chunk]})
            if start % (10 * chunk) == 0:
                clock_steps.refresh_hints()
    clock_steps.refresh_hints()
    return len(ids)


def _request(slug: str, number: int, category: str = "marketing") -> dict[str, Any]:
    person = next(_people(f"{slug}-{number}", 1))
    return {**message(slug), "to": person["to"], "variables": person["variables"], "category": category}


def _people(prefix: str, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        variables = {"first_name": _NAMES[number % len(_NAMES)], "code": f"SPRING-{number}"}
        yield {"to": f"{prefix}-{number}@inbox.example", "variables": variables}


def _write_real(found: Blast, sends: int, prefix: str) -> None:
    connection.ensure_connection()
    fixed = (found.tenant_id, found.pk, found.content_id, found.channel, found.category, found.rail, found.priority)
    with psycopg.Cursor(connection.connection) as cursor, cursor.copy(_COPY) as copy:
        for person in _people(prefix, sends):
            pk = new_id()
            sealed = seal_recipient(pk, person["to"], person["variables"])
            copy.write_row((pk, *fixed, "queued", fingerprint(person["to"]), sealed, 0))
