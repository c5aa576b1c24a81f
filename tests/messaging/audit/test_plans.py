"""What an audit and a redrive cost in a ledger of 200,000 sends: each statement reads its page and what is named there."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from messaging.audit import audit, checks, counts, provider_log
from messaging.ledger import redrive
from messaging.models import Batch, Blast, Send
from tests.factories import make_blast, make_tenant
from tests.messaging.ledger.plans import Plan, generic_plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SENDS = 200_000

# Batches of a hundred, in the order of the sends; every hundredth batch is ambiguous, every tenth send of it has failed.
_FILL = """
UPDATE messaging_sends s SET status = f.status, batch_id = f.batch, provider_id = 'x', accepted_at = now(), error_code = 'why'
FROM (
    SELECT id, overlay('01990000-0000-7000-8000-000000000000' placing lpad(to_hex((n - 1) / 100), 8, '0') from 29)::uuid AS batch,
           CASE WHEN (n - 1) / 100 % 100 = 0 THEN 'ambiguous' WHEN n % 10 = 0 THEN 'failed' ELSE 'sent' END AS status
    FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM messaging_sends) q
) f
WHERE s.id = f.id;
INSERT INTO messaging_batches (id, provider, channel, rail, state, send_ids, digest, idempotency_key, rendered_at, attempts,
                               created_at, finished_at, error_code)
SELECT batch_id, 'resend', 'email', 'marketing',
       CASE WHEN bool_or(status = 'ambiguous') THEN 'ambiguous' ELSE 'accepted_in_part' END,
       array_agg(id ORDER BY id), '', batch_id::text, now(), 1, now(), now(), 'why'
FROM messaging_sends GROUP BY batch_id;
INSERT INTO core_processed_jobs (job_key, fence, lease_until, created_at, done_at)
SELECT 'batch:' || id, 1, now(), now(), now() FROM messaging_batches;
INSERT INTO core_dead_letters (channel, send_id, tenant_id, batch_id, reason, detail, redriven, created_at)
SELECT 'email', id, tenant_id, batch_id, 'why', '', 0, now() FROM messaging_sends WHERE status = 'failed';
ANALYZE messaging_sends, messaging_batches, core_processed_jobs, core_dead_letters, messaging_blasts;
"""


@pytest.fixture
def blast(transactional_db: None) -> Blast:
    blast = make_blast(make_tenant("big"), SENDS)
    for _ in range(300):  # a table of one row is rightly read from end to end
        make_blast(blast.tenant, 0)
    with connection.cursor() as cursor:
        for statement in _FILL.split(";\n"):
            if statement.strip():
                cursor.execute(statement)
    return blast


def _plan(statement: str, **parameters: Any) -> Plan:
    with transaction.atomic():
        plan = generic_plan(statement, parameters)
        transaction.set_rollback(True)
    assert plan.offences() == []
    return plan


def _rows_read(plan: Plan) -> float:
    """Of tables and indexes."""
    return max(node["Actual Rows"] * node["Actual Loops"] for node in plan.nodes() if "Scan" in node["Node Type"])


def test_every_statement_reads_a_page(blast: Blast) -> None:
    sends = list(Send.objects.order_by("id").values_list("id", flat=True)[100_000:105_000])
    batches = list(Batch.objects.order_by("id").values_list("id", flat=True)[500:550])
    keys = [f"batch:{pk}" for pk in batches]
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM core_dead_letters ORDER BY id LIMIT 5000 OFFSET 10000")
        letters = [row[0] for row in cursor.fetchall()]
    for plan in (
        _plan(checks.SENDS, ids=sends),
        _plan(checks.BATCHES, ids=batches),
        _plan(checks.LETTERS, ids=letters),
        _plan(checks.JOBS, ids=keys),
        _plan(counts._STATUSES, blast=blast.pk, after=b"\x7f"),
        _plan(redrive._VERDICTS, ids=sends, tenant=None, accept=True),
        _plan(redrive._MOVE, ids=[pk for pk in sends if pk.int % 7], accept=True, by="ada"),
        _plan(redrive.LETTERS, reason="why", tenant=None, position=0, last=10**9),
        _plan(redrive.AMBIGUOUS, position=UUID(int=0)),
        _plan(redrive._STILL_AMBIGUOUS, ids=sends, reason="why", tenant=None),
        *(
            _plan(
                redrive.OF_BLAST,
                blast=blast.pk,
                tenant=blast.tenant_id,
                priority=2,
                status=status,
                position=UUID(int=2**128 - 1),
            )
            for status in ("failed", "ambiguous")
        ),
    ):
        assert _rows_read(plan) <= 5_000
        assert plan.buffers <= 150_000, plan.buffers


def test_the_provider_s_log_is_compared_by_key(blast: Blast) -> None:
    sends = list(Send.objects.order_by("id").values_list("id", flat=True)[10_000:15_000])
    lines = _plan(
        provider_log._LINES, lines=list(range(5_000)), sends=sends, ids=["x"] * len(sends), times=[1] * len(sends)
    )
    assert _rows_read(lines) <= 5_000
    assert _rows_read(_plan(provider_log._SENT, ids=sends, first=0.0, last=None)) <= 5_000


def test_they_add_up(blast: Blast) -> None:
    report = audit()
    assert (report.checked["sends"], report.found) == (SENDS, {})
