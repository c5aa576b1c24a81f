"""New single sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from core.db.cursor import ledger_cursor
from messaging.domain.lifecycle import SendStatus
from messaging.domain.rails import Category, Channel, Rail


@dataclass(frozen=True, slots=True)
class NewSend:
    id: UUID
    content_id: int
    channel: Channel
    category: Category
    rail: Rail
    priority: int
    not_before: datetime | None  # None: now
    expires_at: datetime | None
    fingerprint: bytes
    sealed: bytes


_INSERT = """
INSERT INTO messaging_sends (id, tenant_id, content_id, channel, category, rail, priority, status, not_before, expires_at,
                             fingerprint, sealed, attempts, created_at)
SELECT n.id, %(tenant)s, n.content_id, n.channel, n.category, n.rail, n.priority,
       CASE WHEN n.not_before > t.now THEN 'scheduled' ELSE 'queued' END,
       coalesce(n.not_before, t.now), n.expires_at, n.fingerprint, n.sealed, 0, t.now
FROM unnest(%(ids)s::uuid[], %(contents)s::bigint[], %(channels)s::text[], %(categories)s::text[], %(rails)s::text[],
            %(priorities)s::smallint[], %(not_before)s::timestamptz[], %(expires_at)s::timestamptz[],
            %(fingerprints)s::bytea[], %(sealed)s::bytea[])
     AS n (id, content_id, channel, category, rail, priority, not_before, expires_at, fingerprint, sealed),
     (SELECT clock_timestamp() AS now OFFSET 0) AS t
RETURNING id, status, created_at
"""


def insert_sends(tenant_id: int, rows: Sequence[NewSend]) -> dict[UUID, tuple[SendStatus, datetime]]:
    """Write `rows` for the tenant. Returns status (queued, or scheduled if `not_before` lies ahead) and time of each."""
    if not rows:
        return {}
    with ledger_cursor() as cursor:
        written = cursor.all(
            _INSERT,
            {
                "tenant": tenant_id,
                "ids": [r.id for r in rows],
                "contents": [r.content_id for r in rows],
                "channels": [r.channel for r in rows],
                "categories": [r.category for r in rows],
                "rails": [r.rail for r in rows],
                "priorities": [r.priority for r in rows],
                "not_before": [r.not_before for r in rows],
                "expires_at": [r.expires_at for r in rows],
                "fingerprints": [r.fingerprint for r in rows],
                "sealed": [r.sealed for r in rows],
            },
        )
    return {pk: (SendStatus(status), created_at) for pk, status, created_at in written}
