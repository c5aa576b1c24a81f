"""A ledger with everything in it that a statement must not pay for, made once for all plans.

Committed, as what an uncommitted transaction has changed would be a state that no ledger is in; so whoever loads it empties it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.core.management import call_command
from django.db import connection

from messaging.ledger import sweeps
from messaging.ledger.lane_marks import judge_lanes
from messaging.models import Blast
from tests.factories import insert_raw, make_blast, make_tenant


@dataclass(frozen=True)
class Loaded:
    """`big` has a million sends: in the marketing `blast`, as single product mails, and in a product blast, half of it due
    tomorrow."""

    big: int
    blast: Blast
    singles: list[int]  # tenants with marketing sends and login codes
    codes: int  # tenants whose codes may go: these, and one behind all that are closed


#: Closed tenants with a code that is due, half of them inactive.
CLOSED = 5_000
DRAFTS = 200_000
RELEASED = 100_000

# Half of them tomorrow, the others until then.
_LATER = """
UPDATE messaging_sends SET status = CASE WHEN get_byte(fingerprint, 0) < 128 THEN 'scheduled' ELSE status END,
    not_before = CASE WHEN get_byte(fingerprint, 0) < 128 THEN now() + interval '1 day' ELSE not_before END,
    expires_at = now() + interval '2 days'
WHERE blast_id = %s
"""
_TENANTS = "INSERT INTO core_tenants (slug, name, active) SELECT %s || i, 'x', true FROM generate_series(1, %s) i"
# All at once, not tenant by tenant: what closes them is somewhere among those that are open.
_CLOSED_CODES = """
INSERT INTO messaging_sends (id, tenant_id, content_id, channel, category, rail, priority, status, fingerprint, sealed, attempts)
SELECT gen_random_uuid(), t.id, %s, 'email', c.category, 'transactional', c.priority, 'queued', '\\x00', '\\x00', 0
FROM core_tenants t, (VALUES ('transactional', 0), ('product', 1)) c (category, priority) WHERE t.slug LIKE 'closed-%%'
"""
_PAUSE_HALF = """
INSERT INTO messaging_tenant_lanes (tenant_id, channel, rail, priority, paused, isolated, hold_code, hold_detail, hold_seconds)
SELECT t.id, 'email', 'transactional', p, true, false, '', '', 0 FROM core_tenants t, generate_series(0, 1) p
WHERE t.slug LIKE 'closed-%' AND t.id % 2 = 0
"""
_STOP_HALF = "UPDATE core_tenants SET active = false WHERE slug LIKE 'closed-%' AND id % 2 = 1"
_RELEASED = """
INSERT INTO messaging_tenant_lanes (tenant_id, channel, rail, priority, paused, isolated, hold_code, hold_detail, hold_seconds)
SELECT t.id, 'email', 'transactional', 0, false, false, '', '', 0 FROM core_tenants t WHERE t.slug LIKE 'idle-%'
"""
_BLASTS = """
INSERT INTO messaging_blasts (id, tenant_id, content_id, name, channel, category, rail, priority, state, rows_read, planned,
                              duplicates, rejected, isolated, hold_code, hold_detail, hold_seconds, created_at, finished_at)
SELECT gen_random_uuid(), %s, %s, '', 'email', 'marketing', 'marketing', 2, %s, 0, 0, 0, 0, false, '', '', 0,
       now() - i * interval '1 s', CASE WHEN %s = 'finished' THEN now() END
FROM generate_series(1, %s) i
"""
_OLD_BATCHES = """
WITH old AS (
    INSERT INTO messaging_batches (id, provider, channel, rail, state, send_ids, digest, idempotency_key, rendered_at, attempts,
                                   created_at, finished_at)
    SELECT gen_random_uuid(), 'resend', 'email', 'marketing', 'accepted', ARRAY[gen_random_uuid()], '\\x00', i::text, now(), 1,
           now(), now()
    FROM generate_series(1, 20000) i RETURNING id
)
INSERT INTO core_processed_jobs (job_key, fence, lease_until, created_at, done_at)
SELECT 'batch:' || id, 1, now(), now(), now() FROM old
"""


@contextmanager
def loaded_ledger() -> Iterator[Loaded]:
    try:
        yield _load()
    finally:
        call_command("flush", verbosity=0, interactive=False)


def _load() -> Loaded:
    big = make_tenant("big")
    blast = make_blast(big, 700_000)
    insert_raw(big, 200_000, category="product")
    later = make_blast(big, 100_000, category="product")
    with connection.cursor() as cursor:
        cursor.execute(_LATER, [later.pk])
    singles = [make_tenant(f"single-{i}") for i in range(50)]
    _dead_weight(big.pk, blast.content_id)
    singles += [make_tenant(f"later-{i}") for i in range(50)]
    for tenant in singles:
        insert_raw(tenant, 50)
        insert_raw(tenant, 5, category="transactional")
        make_blast(tenant, 5)
    for tenant in singles * 3:
        make_blast(tenant, 20, state="paused")
        make_blast(tenant, 5, state="paused", category="product")
    while judge_lanes():
        pass
    sweeps.refresh_hints()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    return Loaded(big.pk, blast, [t.pk for t in singles], len(singles))


def _dead_weight(tenant: int, content: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_TENANTS, ["closed-", CLOSED])
        cursor.execute(_CLOSED_CODES, [content])
        cursor.execute(_PAUSE_HALF)
        cursor.execute(_STOP_HALF)
        cursor.execute(_TENANTS, ["idle-", RELEASED])
        cursor.execute("SET session_replication_role = replica")  # they were there before there were marks
        cursor.execute(_RELEASED)
        cursor.execute("SET session_replication_role = DEFAULT")
        cursor.execute(_BLASTS, [tenant, content, "planning", "planning", DRAFTS])
        cursor.execute(_BLASTS, [tenant, content, "finished", "finished", 20_000])
        cursor.execute(_OLD_BATCHES)
