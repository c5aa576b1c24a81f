"""What a page of a tenant's sends costs does not depend on how many there are: a million of one tenant, in one blast that
has been sent in part, with an old snapshot that keeps every dead row and index entry alive."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection, transaction
from django.utils import timezone

from core.db.cursor import LedgerCursor
from messaging.domain.lifecycle import SendStatus
from messaging.domain.rails import Category
from messaging.ledger import listing
from messaging.ledger.listing import Page, SendFilter, page_of
from messaging.models import Send
from tests.factories import insert_raw, make_blast, make_tenant
from tests.messaging.ledger.plans import Plan, generic_plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Pages that a statement may touch where nothing is sifted: fifty sends, and the way to them.
DIRECT = 500
#: And where it is: `SCAN` sends on pages of their own, with the dead entries that the old snapshot keeps of each (two).
SIFTED = 3 * listing.SCAN + DIRECT

_SOME = """
UPDATE messaging_sends SET status = %s, accepted_at = now(), batch_id = id WHERE id = ANY (ARRAY(
    SELECT id FROM messaging_sends WHERE blast_id = %s AND status = 'queued' ORDER BY id LIMIT %s))
"""


@pytest.fixture
def loaded(transactional_db: None) -> Iterator[dict[str, Any]]:
    tenant = make_tenant("big")
    insert_raw(tenant, 1_000, category="transactional")
    blast = make_blast(tenant, 1_000_000)
    for _ in range(600):
        make_blast(tenant, 1)
    other = make_tenant("other")
    insert_raw(other, 20_000)
    connection.ensure_connection()
    given = connection.get_connection_params()
    with psycopg.connect(**{k: given[k] for k in ("dbname", "user", "password", "host", "port") if k in given}) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM core_tenants")
        with connection.cursor() as cursor:
            for status, count in (("sending", 100_000), ("sent", 300_000), ("failed", 20), ("cancelled", 5_000)):
                cursor.execute(_SOME, [status, blast.pk, count])
            cursor.execute("UPDATE messaging_sends SET status = 'sent' WHERE status = 'sending'")
            cursor.execute("ANALYZE messaging_sends, messaging_blasts, core_tenants")
        yield {"tenant": tenant, "blast": blast, "other": other}
        old.rollback()


def explained(monkeypatch: pytest.MonkeyPatch, wanted: SendFilter, before: UUID | None = None) -> tuple[Plan, Page]:
    """The plan of the page's own statement, and the page."""
    seen: list[tuple[str, Any]] = []
    original = LedgerCursor.all

    def spy(self: LedgerCursor, sql: str, parameters: Any = None) -> Any:
        seen.append((sql, parameters))
        return original(self, sql, parameters)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerCursor, "all", spy)
        page = page_of(wanted, before=before, limit=50)
    assert page is not None
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(listing.IN_ORDER)
        return generic_plan(*seen[0]), page


def test_every_filter_reads_a_bounded_number_of_pages(loaded: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tenant, blast = loaded["tenant"].pk, loaded["blast"].pk
    by_id = Send.objects.filter(blast=blast).order_by("id").values_list("id", "fingerprint")
    (_, mark), (middle, _) = by_id[500_000], by_id[200_000]
    now = timezone.now()
    direct: list[tuple[dict[str, Any], int]] = [
        ({}, 50),
        ({"category": Category.TRANSACTIONAL}, 50),
        ({"category": Category.PRODUCT}, 0),
        ({"status": SendStatus.SENT}, 50),
        ({"status": SendStatus.FAILED}, 20),
        ({"status": SendStatus.EXPIRED}, 0),
        ({"status": SendStatus.QUEUED}, 50),
        ({"status": SendStatus.SENT, "category": Category.MARKETING}, 50),
        ({"status": SendStatus.QUEUED, "category": Category.TRANSACTIONAL}, 50),
        ({"created_before": now + timedelta(seconds=1)}, 50),
        ({"created_after": now - timedelta(days=1)}, 50),
        ({"created_before": now - timedelta(days=1)}, 0),
        ({"status": SendStatus.SENT, "created_before": now - timedelta(days=1)}, 0),
        ({"blast": blast}, 50),
        ({"blast": blast, "status": SendStatus.SENT}, 50),
        ({"blast": blast, "status": SendStatus.FAILED}, 20),
        ({"fingerprint": bytes(mark), "blast": blast}, 1),
    ]
    for filters, count in direct:
        plan, page = explained(monkeypatch, SendFilter(tenant=tenant, **filters))
        assert (plan.offences(), len(page.rows)) == ([], count), filters
        assert plan.buffers <= DIRECT, (filters, plan.buffers)
    sifted: list[tuple[dict[str, Any], UUID | None, int, bool]] = [
        ({"fingerprint": bytes(mark)}, None, 0, True),  # 500 of 601 blasts looked into
        (
            {"fingerprint": bytes(mark), "status": SendStatus.SENT, "created_after": now - timedelta(days=1)},
            None,
            0,
            True,
        ),
        ({"status": SendStatus.QUEUED}, middle, 0, True),  # below it all were sent
        ({"blast": blast, "status": SendStatus.QUEUED}, middle, 0, True),
        ({"blast": blast, "category": Category.TRANSACTIONAL}, None, 0, False),
        ({"status": SendStatus.SENDING}, None, 0, False),
    ]
    for filters, before, count, more in sifted:
        plan, page = explained(monkeypatch, SendFilter(tenant=tenant, **filters), before)
        assert (len(page.rows), page.position is not None) == (count, more), filters
        assert [offence for offence in plan.offences() if "messaging_sends" in offence] == [], filters
        assert plan.buffers <= SIFTED, (filters, plan.buffers)
    for filters in ({}, {"category": Category.MARKETING}, {"status": SendStatus.SENT}, {"blast": blast}):
        plan, page = explained(monkeypatch, SendFilter(tenant=tenant, **filters), middle)
        assert (plan.offences(), len(page.rows)) == ([], 50), filters
        assert plan.buffers <= DIRECT, (filters, plan.buffers)


@pytest.mark.django_db
@pytest.mark.parametrize("analyzed", [False, True])
def test_the_order_comes_from_the_tenants_index(monkeypatch: pytest.MonkeyPatch, analyzed: bool) -> None:
    """Also where one tenant has all there is: the planner would rather read the primary key and sort."""
    tenant = make_tenant()
    make_blast(tenant, 20_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE messaging_sends" if analyzed else "SELECT 1")
    for filters in ({}, {"category": Category.MARKETING}, {"status": SendStatus.SENT}, {"status": SendStatus.QUEUED}):
        plan, _ = explained(monkeypatch, SendFilter(tenant=tenant.pk, **filters))
        used = {node["Index Name"] for node in plan.nodes() if node.get("Relation Name") == "messaging_sends"}
        assert used <= {"messaging_sends_tenant", "messaging_sends_tenant_status"}, filters
        assert [node["Node Type"] for node in plan.nodes() if "Sort" in node["Node Type"]] == [], filters
