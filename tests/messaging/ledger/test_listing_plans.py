"""What a page of a tenant's sends costs does not depend on how many there are: a million of one tenant, in one blast that
has been sent in part, with an old snapshot that keeps every dead row and index entry alive."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from core.db import LedgerCursor
from messaging.ledger import listing
from messaging.ledger.listing import COLUMNS, Wanted, page_of
from messaging.lifecycle import SendStatus
from messaging.models import Send
from messaging.rails import Category
from tests.factories import insert_raw, make_blast, make_tenant
from tests.messaging.ledger.plans import Plan, generic_plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Pages that one statement may touch: `SCAN` sends one by one, with their index entries of three versions.
SCANNED = 9_000
#: Where nothing is sifted: fifty sends (three versions each, on pages of their own) and the way to them.
DIRECT = 1_500

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


def plans(monkeypatch: pytest.MonkeyPatch, wanted: Wanted, **page: Any) -> tuple[Plan, int]:
    """The plan of the page's own statement, and how many sends it answers."""
    seen: list[tuple[str, Any]] = []
    original = LedgerCursor.all

    def spy(self: LedgerCursor, sql: str, parameters: Any = None) -> Any:
        seen.append((sql, parameters))
        return original(self, sql, parameters)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerCursor, "all", spy)
        found = page_of(wanted, before=page.get("before"), limit=50)
    assert found is not None
    if not seen:
        return Plan({"Shared Hit Blocks": 0, "Shared Read Blocks": 0, "Node Type": "", "Actual Loops": 0}), 0
    return generic_plan(*seen[0]), len(found.rows)


def test_every_filter_reads_a_bounded_number_of_pages(loaded: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tenant, blast = loaded["tenant"].pk, loaded["blast"].pk
    middle = Send.objects.filter(blast=blast).order_by("id").values_list("id", "fingerprint")[500_000:500_001].get()
    soon = timezone.now() + timedelta(seconds=1)
    recipient = {"fingerprint": bytes(middle[1])}
    direct = [
        ({}, 50),
        ({"category": Category.TRANSACTIONAL}, 50),
        ({"category": Category.PRODUCT}, 0),
        ({"status": SendStatus.SENT}, 50),
        ({"status": SendStatus.FAILED}, 20),
        ({"status": SendStatus.EXPIRED}, 0),
        ({"status": SendStatus.SENDING}, 0),
        ({"status": SendStatus.QUEUED}, 50),
        ({"status": SendStatus.SENT, "category": Category.MARKETING}, 50),
        ({"created_before": soon}, 50),
        ({"created_after": soon - timedelta(days=1)}, 50),
    ]
    for filters, count in direct:
        plan, answered = plans(monkeypatch, Wanted(tenant=tenant, **filters))
        print(filters, plan.buffers, answered, plan.offences())
        pass
    sifted = [
        {"blast": blast},
        {"blast": blast, "status": SendStatus.SENT},
        {"blast": blast, "status": SendStatus.QUEUED},
        {"blast": blast, "category": Category.TRANSACTIONAL},
        {"status": SendStatus.QUEUED, "category": Category.TRANSACTIONAL},
        {"status": SendStatus.SENT, "created_before": timezone.now() - timedelta(days=1)},
        {"created_before": timezone.now() - timedelta(days=1)},
        recipient,
        recipient | {"blast": blast},
        recipient | {"status": SendStatus.SENT, "category": Category.MARKETING, "created_before": soon},
    ]
    for filters in sifted:
        plan, _ = plans(monkeypatch, Wanted(tenant=tenant, **filters))
        print(filters, plan.buffers, plan.offences(), plan.root.get("Actual Rows"))
        pass
    for filters in ({}, {"status": SendStatus.QUEUED}, {"status": SendStatus.SENT}, {"blast": blast}):
        plan, _ = plans(monkeypatch, Wanted(tenant=tenant, **filters), before=middle[0])
        print(filters, plan.buffers, plan.offences(), plan.root.get("Actual Rows"))
        pass


def test_no_page_sorts_more_than_it_answers(loaded: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages come out of the indexes in order: a sort would have to read all that it sorts."""
    for filters in ({}, {"status": SendStatus.SENT}, {"blast": loaded["blast"].pk}):
        plan, _ = plans(monkeypatch, Wanted(tenant=loaded["tenant"].pk, **filters))
        assert [n["Node Type"] for n in plan.nodes() if "Sort" in n["Node Type"]] == [], filters


def test_columns_are_the_answer(loaded: dict[str, Any]) -> None:
    found = page_of(Wanted(tenant=loaded["other"].pk), before=None, limit=1)
    assert found is not None
    assert tuple(found.rows[0]) == COLUMNS
    assert listing.SCAN >= 100
