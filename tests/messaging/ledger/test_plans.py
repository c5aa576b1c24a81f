"""The cost of the ledger's statements is flat: with a million queued sends, paused lanes, and an old snapshot that keeps
every dead row and index entry alive, each touches about as many pages as with ten thousand sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from core.ids import new_id
from messaging.clock import steps
from messaging.clock.tickets import _WORK
from messaging.ledger import claim, record
from messaging.ledger.candidates import _REPLAY, CANDIDATES
from messaging.rails import Channel, Rail
from tests.factories import insert_raw, make_blast, make_tenant
from tests.messaging.ledger.plans import Plan, generic_plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MARKETING = {"channel": "email", "rail": "marketing", "priority": 2}
TRANSACTIONAL = {"channel": "email", "rail": "transactional", "priority": 0}
LOOK = {"cursor": 0, "starved": [], "max_batch": 100, "full": False}


#: What a ledger has of them: an empty table is rightly read from end to end.
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


@pytest.fixture
def loaded(transactional_db: None) -> dict[str, Any]:
    """A million sends in one blast, 100 small blasts of as many tenants, 300 paused blasts, single sends of both rails."""
    big = make_tenant("big")
    blast = make_blast(big, 1_000_000)
    for i in range(100):
        make_blast(make_tenant(f"small-{i}"), 5)
    for i in range(300):
        make_blast(make_tenant(f"paused-{i}"), 50, state="paused")
    singles = [make_tenant(f"single-{i}") for i in range(50)]
    for tenant in singles:
        insert_raw(tenant, 50)
        insert_raw(tenant, 5, category="transactional")
    with connection.cursor() as cursor:
        cursor.execute(_OLD_BATCHES)
        cursor.execute(
            "ANALYZE messaging_sends, messaging_blasts, messaging_batches, core_processed_jobs, core_tenants"
        )
    steps.refresh_hints()
    return {"big": big, "blast": blast, "singles": [t.pk for t in singles]}


@pytest.fixture
def old_snapshot(loaded: dict[str, Any]) -> Iterator[None]:
    """Somebody's export: a transaction that has looked at the ledger and stays open while 40,000 sends are claimed."""
    other = psycopg.connect(**{k: v for k, v in connection.get_connection_params().items() if k in _CONNECT})
    with other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM core_tenants")
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE messaging_sends SET status = 'sent', accepted_at = now(), batch_id = id WHERE id = ANY (ARRAY("
                "SELECT id FROM messaging_sends WHERE blast_id = %s AND status = 'queued' ORDER BY id LIMIT 40000))",
                [loaded["blast"].pk],
            )
        steps.refresh_hints()
        yield
        other.rollback()
    other.close()


_CONNECT = ("dbname", "user", "password", "host", "port")


def _explain(sql: str, parameters: dict[str, Any]) -> Plan:
    with transaction.atomic():
        plan = generic_plan(sql, parameters)
        transaction.set_rollback(True)
    return plan


def _claim_parameters(loaded: dict[str, Any], sends: int) -> dict[str, Any]:
    return MARKETING | {
        "batch": new_id(),
        "tenants": [],
        "sends": [],
        "blasts": [loaded["blast"].pk],
        "blast_sends": [sends],
    }


def _check(plan: Plan, pages: int) -> None:
    assert plan.offences() == []
    assert plan.buffers <= pages, f"{plan.buffers} pages"


def test_candidates_claim_and_record_read_a_bounded_number_of_pages(loaded: dict[str, Any]) -> None:
    _check(_explain(CANDIDATES, MARKETING | LOOK), 6_000)
    _check(_explain(CANDIDATES, MARKETING | LOOK | {"full": True}), 6_000)
    _check(_explain(CANDIDATES, MARKETING | LOOK | {"cursor": loaded["singles"][10]}), 6_000)
    _check(_explain(CANDIDATES, TRANSACTIONAL | LOOK), 1_500)
    _check(_explain(claim._TAKE, _claim_parameters(loaded, 100)), 5_000)
    singles = {"tenants": loaded["singles"], "sends": [2] * 50, "blasts": [], "blast_sends": []}
    _check(_explain(claim._TAKE, MARKETING | {"batch": new_id()} | singles), 6_000)
    _check(_explain(_REPLAY, MARKETING | {"provider": "resend", "passed": []}), 50)
    _check(_explain(_WORK, MARKETING | {"provider": "resend", "priorities": [2]}), 50)


def test_a_claim_costs_the_same_per_send_whatever_the_backlog(loaded: dict[str, Any]) -> None:
    ten = _explain(claim._TAKE, _claim_parameters(loaded, 10)).buffers
    hundred = _explain(claim._TAKE, _claim_parameters(loaded, 100)).buffers
    assert hundred <= 10 * ten + 200


def test_accepting_a_batch_reads_its_own_sends_only(loaded: dict[str, Any]) -> None:
    batch = new_id()
    with transaction.atomic():
        lane = claim.Take(loaded["big"].pk, 2, loaded["blast"].pk, 100)
        sends, _ = claim.take(Channel.EMAIL, Rail.MARKETING, 2, batch, [lane])
        plan = generic_plan(
            record._ACCEPT,
            {
                "batch": batch,
                "ids": [s.id for s in sends],
                "provider_ids": ["x"] * len(sends),
                "from": ["sending", "ambiguous"],
            },
        )
        transaction.set_rollback(True)
    assert len(sends) == 100
    _check(plan, 6_000)


@pytest.mark.usefixtures("old_snapshot")
def test_an_old_snapshot_does_not_make_claims_dearer(loaded: dict[str, Any]) -> None:
    """40,000 claimed sends are still in the index for the snapshot's sake: `low` steps over them."""
    _check(_explain(CANDIDATES, MARKETING | LOOK), 6_000)
    _check(_explain(claim._TAKE, _claim_parameters(loaded, 100)), 5_000)
