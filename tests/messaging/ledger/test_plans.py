"""What a statement of search, claim, record, clock, depth and scrape costs does not depend on what is over, or closed.

A million queued sends; and 200,000 drafts, 100,000 rows of released lanes, 20,000 finished blasts, batches and jobs, 300 paused
blasts and 5,000 closed tenants with due sends among those that are open. Then with an old snapshot, which keeps every dead
row and index entry alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection, transaction

from core.security.ids import new_id
from messaging.domain.rails import Channel, Rail
from messaging.ledger import backlog, claim, expired_keys, lane_marks, record, sweeps
from messaging.ledger.candidates import _REPLAY, CANDIDATES, candidates
from messaging.ledger.depth import COUNT, WHO
from tests.messaging.ledger.loaded import Loaded, loaded_ledger
from tests.messaging.ledger.plans import Plan, generic_plan

pytestmark = [pytest.mark.slow, pytest.mark.django_db, pytest.mark.timeout(300)]

EMAIL = {"channel": "email"}
MARKETING = EMAIL | {"rail": "marketing", "priority": 2}
TRANSACTIONAL = EMAIL | {"rail": "transactional", "priority": 0}
LOOK = {"cursor": 0, "starved": [], "max_batch": 100, "full": False}
NIL = UUID(int=0)


@pytest.fixture(scope="module")
def loaded(django_db_setup: None, django_db_blocker: Any) -> Iterator[Loaded]:
    with django_db_blocker.unblock(), loaded_ledger() as found:
        yield found


@pytest.fixture
def old_snapshot(loaded: Loaded) -> Iterator[None]:
    """Somebody's export: a transaction that has looked at the ledger and stays open while 40,000 sends are claimed."""
    expired_keys = ("dbname", "user", "password", "host", "port")
    with psycopg.connect(**{k: v for k, v in connection.get_connection_params().items() if k in expired_keys}) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM core_tenants")
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE messaging_sends SET status = 'sent', accepted_at = now(), batch_id = id WHERE id = ANY (ARRAY("
                "SELECT id FROM messaging_sends WHERE blast_id = %s AND status = 'queued' ORDER BY id LIMIT 40000))",
                [loaded.blast.pk],
            )
        for _ in range(sweeps.TURNS):
            sweeps.refresh_hints()
        yield
        other.rollback()


def _explain(sql: str, parameters: dict[str, Any]) -> Plan:
    with transaction.atomic():
        plan = generic_plan(sql, parameters)
        transaction.set_rollback(True)
    return plan


def _check(plan: Plan, pages: int) -> None:
    assert plan.offences() == []
    assert plan.buffers <= pages, f"{plan.buffers} pages"


def _claim_of(loaded: Loaded, sends: int) -> dict[str, Any]:
    return MARKETING | {
        "batch": new_id(),
        "tenants": [],
        "sends": [],
        "blasts": [loaded.blast.pk],
        "blast_sends": [sends],
    }


# ------------------------------------------------------------------------------------------------------ search, claim


@pytest.mark.parametrize("cursor", ["from the start", "from the middle", "from the end"])
def test_a_look_for_codes_is_spared_the_closed_and_the_idle(loaded: Loaded, cursor: str) -> None:
    at = {"from the start": 0, "from the middle": loaded.singles[50] - 1, "from the end": 10**9}[cursor]
    _check(_explain(CANDIDATES, TRANSACTIONAL | LOOK | {"cursor": at}), 2_500)
    found = candidates(Channel.EMAIL, Rail.TRANSACTIONAL, 0, cursor=at, starved=(), max_batch=100)
    assert {lane.tenant for lane in found} == set(loaded.singles)


def test_candidates_and_claim_read_a_bounded_number_of_pages(loaded: Loaded) -> None:
    _check(_explain(CANDIDATES, MARKETING | LOOK), 6_000)
    _check(_explain(CANDIDATES, MARKETING | LOOK | {"full": True}), 7_500)
    _check(_explain(CANDIDATES, MARKETING | LOOK | {"cursor": loaded.singles[10]}), 6_000)
    _check(_explain(CANDIDATES, TRANSACTIONAL | LOOK | {"priority": 1}), 500)
    _check(_explain(claim._TAKE, _claim_of(loaded, 100)), 5_000)
    singles = {"tenants": loaded.singles, "sends": [1] * 100, "blasts": [], "blast_sends": []}
    _check(_explain(claim._TAKE, MARKETING | {"batch": new_id()} | singles), 6_000)
    _check(_explain(claim._LOCK_TENANTS, {"ids": loaded.singles}), 1_000)
    _check(_explain(claim._LOCK_BLASTS, {"ids": [loaded.blast.pk]}), 50)
    _check(_explain(_REPLAY, MARKETING | {"provider": "resend", "passed": []}), 50)


def test_a_claim_costs_the_same_per_send_whatever_the_backlog(loaded: Loaded) -> None:
    ten = _explain(claim._TAKE, _claim_of(loaded, 10)).buffers
    hundred = _explain(claim._TAKE, _claim_of(loaded, 100)).buffers
    assert hundred <= 10 * ten + 200


def test_accepting_a_batch_reads_its_own_sends_only(loaded: Loaded) -> None:
    batch = new_id()
    lane = claim.Take(loaded.big, 2, loaded.blast.pk, 100)
    sends, _ = claim.take(Channel.EMAIL, Rail.MARKETING, 2, batch, [lane])
    ids = {"ids": [s.id for s in sends], "provider_ids": ["x"] * len(sends), "from": ["sending", "ambiguous"]}
    plan = generic_plan(record._ACCEPT, {"batch": batch} | ids)
    assert len(sends) == 100
    _check(plan, 6_000)


@pytest.mark.usefixtures("old_snapshot")
def test_an_old_snapshot_does_not_make_claims_dearer(loaded: Loaded) -> None:
    """40,000 claimed sends are still in the index for the snapshot's sake: `low` steps over them."""
    _check(_explain(CANDIDATES, MARKETING | LOOK), 6_000)
    _check(_explain(claim._TAKE, _claim_of(loaded, 100)), 5_000)
    _check(_explain(sweeps.FACTS, {"after": NIL, "limit": 2_000}), 1_500)
    _check(_explain(sweeps._LOCK_RUN_OUT, {"limit": 5_000}), 1_000)


# -------------------------------------------------------------------------------------------------------------- clock

BEAT: dict[str, tuple[Callable[[], str], dict[str, Any], int]] = {
    "wake": (lambda: sweeps._WAKE, {"priority": 1, "limit": 5_000}, 50),
    "expire": (lambda: sweeps._EXPIRE, {"limit": 5_000}, 50),
    "clear cancelled, queued": (lambda: sweeps._CLEAR % {"status": "queued"}, {"limit": 5_000}, 50),
    "clear cancelled, scheduled": (lambda: sweeps._CLEAR % {"status": "scheduled"}, {"limit": 5_000}, 50),
    "marks of blasts": (lambda: sweeps._MARKS, {"limit": 5_000}, 50),
    "hints": (lambda: sweeps.FACTS, {"after": NIL, "limit": 2_000}, 1_500),
    "finish": (lambda: sweeps._LOCK_RUN_OUT, {"limit": 5_000}, 1_000),
    "judge": (lambda: lane_marks.JUDGE, {"limit": 5_000, "open": 500, "after": 0}, 4_000),
    "missing": (
        # A thousand tenants, every five seconds.
        lambda: lane_marks.MISSING,
        {"channel": "", "rail": "", "priority": 0, "tenant": 0},
        8_000,
    ),
    "idle lanes": (lambda: lane_marks.IDLE, {}, 100),
    "drafts": (lambda: sweeps.EXPIRE_DRAFTS, {"limit": 5_000, "days": 7}, 50),
    "old keys": (lambda: expired_keys.PRUNE, {"limit": 5_000, "days": 7}, 50),
    "old jobs": (lambda: sweeps._PRUNE_JOBS, {"limit": 5_000, "days": 7}, 50),
    "work, transactional": (
        lambda: backlog.any_work(Rail.TRANSACTIONAL),
        EMAIL | {"rail": "transactional", "provider": "resend"},
        50,
    ),
    "work, marketing": (
        lambda: backlog.any_work(Rail.MARKETING),
        EMAIL | {"rail": "marketing", "provider": "resend"},
        50,
    ),
}


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("step", BEAT)
def test_a_beat_pays_for_what_is_live_only(step: str) -> None:
    statement, parameters, pages = BEAT[step]
    _check(_explain(statement(), parameters), pages)


# ------------------------------------------------------------------------------------------------------ depth, scrape


def test_a_look_at_the_depth_reads_a_bounded_number_of_pages(loaded: Loaded) -> None:
    rail = EMAIL | {"rail": "transactional"}
    who = _explain(WHO, rail)
    assert who.root["Actual Rows"] == loaded.codes + 1, "none of those that are closed"
    _check(who, 2_500)
    tenants = {"tenants": [loaded.big, *loaded.singles], "singles": [3] * 101}
    _check(_explain(COUNT, rail | tenants | {"most": [2_000] * 101, "limit": 100}), 400)
    _check(_explain(COUNT, rail | tenants | {"most": [2_000] * 101, "limit": 5_000}), 6_000)
    one = {"tenants": [loaded.big], "singles": [0], "most": [1_000_000], "limit": 1_000}
    _check(_explain(COUNT, rail | one), 1_500)


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("rail", list(Rail))
def test_a_scrape_reads_a_bounded_number_of_pages(rail: Rail) -> None:
    # It counts what waits, closed or not, and looks at a thousand tenants of each priority.
    _check(_explain(backlog.statement(rail), EMAIL | {"rail": rail}), 3_000 if rail is Rail.MARKETING else 20_000)
