"""With a million queued sends, in a blast or of one tenant, a look at the depth and a scrape cost as much as with a few."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction

from messaging.clock import steps
from messaging.metrics import ledger
from messaging.rails import Rail
from messaging.yielding.depth import COUNT, WHO
from tests.factories import insert_raw, make_blast, make_tenant
from tests.messaging.ledger.plans import Plan, generic_plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RAIL = {"channel": "email", "rail": "transactional"}


def _explain(sql: str, parameters: dict[str, Any]) -> Plan:
    with transaction.atomic():
        plan = generic_plan(sql, RAIL | parameters)
        transaction.set_rollback(True)
    return plan


def _check(plan: Plan, pages: int) -> None:
    assert plan.offences() == []
    assert plan.buffers <= pages, f"{plan.buffers} pages"


@pytest.fixture
def loaded(transactional_db: None) -> list[int]:
    """600,000 sends of a marketing blast, 300,000 product mails of one tenant, 100,000 of a product blast, 300 paused product
    blasts, 100 tenants with login codes."""
    big = make_tenant("big")
    make_blast(big, 600_000)
    insert_raw(big, 300_000, category="product")
    make_blast(big, 100_000, category="product")
    for i in range(300):
        make_blast(make_tenant(f"paused-{i}"), 5, state="paused", category="product")
    small = [make_tenant(f"small-{i}") for i in range(100)]
    for tenant in small:
        insert_raw(tenant, 5, category="transactional")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE messaging_sends, messaging_blasts, core_tenants")
    steps.refresh_hints()
    return [big.pk, *(tenant.pk for tenant in small)]


def test_a_look_reads_a_bounded_number_of_pages(loaded: list[int]) -> None:
    who = _explain(WHO, {})
    assert who.root["Actual Rows"] == len(loaded)
    _check(who, 2_500)
    tenants = {"tenants": loaded, "single": [True] * len(loaded)}
    few = _explain(COUNT, tenants | {"most": [2_000] * len(loaded), "limit": 100})
    many = _explain(COUNT, tenants | {"most": [2_000] * len(loaded), "limit": 5_000})
    one = _explain(COUNT, {"tenants": loaded[:1], "single": [False], "most": [1_000_000], "limit": 1_000})
    _check(few, 400)
    _check(many, 6_000)
    _check(one, 1_500)


def test_a_scrape_reads_a_bounded_number_of_pages(loaded: list[int]) -> None:
    for rail in Rail:
        _check(_explain(ledger.statement(rail), {"rail": rail}), 3_000)
