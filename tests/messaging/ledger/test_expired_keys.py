"""An idempotency key lives as long as what it was used for is open or can be redriven, and seven days from then on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from core.broker import queues
from core.models import Tenant
from messaging.ledger.expired_keys import LIMIT, PRUNE, prune_keys
from messaging.models import Blast, IdempotencyKey, Send
from messaging.services.redrive import redrive
from messaging.services.submit import Submitted, submit
from tests.factories import insert_raw, make_tenant, request, submit_some
from tests.messaging.ledger.plans import generic_plan
from tests.messaging.planner.rig import people, plan
from tests.rig import seed_buckets

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tenant() -> Tenant:
    seed_buckets()
    queues.breaker.reset()
    return make_tenant()


def days_pass(days: float) -> None:
    """Everything that has happened lies further back; the clock has looked at the keys every day."""
    while days > 0:
        with connection.cursor() as cursor:
            step = min(1.0, days) * timedelta(days=1)
            cursor.execute("UPDATE messaging_idempotency_keys SET keep_until = keep_until - %s", [step])
            cursor.execute("UPDATE messaging_sends SET accepted_at = accepted_at - %s", [step])
            cursor.execute("UPDATE messaging_blasts SET finished_at = finished_at - %s", [step])
        prune_keys()
        days -= 1


def ask(tenant: Tenant, **values: Any) -> Submitted:
    return submit(tenant, **request(tenant, **values), idempotency_key="k")


def end(status: str) -> None:
    bound = {"accepted_at": timezone.now()} if status == "sent" else {}
    Send.objects.update(status=status, error_code="some_reason", **bound)


def keys() -> int:
    return IdempotencyKey.objects.count()


def test_a_send_that_still_waits_is_answered_from_its_key_however_old_that_is(tenant: Tenant) -> None:
    later = timezone.now() + timedelta(days=30)
    first = ask(tenant, not_before=later)
    days_pass(8)
    assert ask(tenant, not_before=later) == first
    days_pass(21)
    assert ask(tenant, not_before=later) == first
    assert Send.objects.count() == 1


def test_a_failed_send_is_redriven_after_forty_days_and_its_submit_repeated(tenant: Tenant) -> None:
    first = ask(tenant)
    end("failed")
    days_pass(40)
    assert redrive(send_ids=[first.id], by="ada").moved == 1
    days_pass(10)
    assert ask(tenant) == first
    end("sent")
    days_pass(6.5)
    assert ask(tenant) == first
    days_pass(8)
    assert keys() == 0
    assert Send.objects.count() == 1


@pytest.mark.parametrize("status", ["sent", "cancelled", "expired"])
def test_a_key_goes_seven_days_after_the_end_of_its_send(tenant: Tenant, status: str) -> None:
    ask(tenant, not_before=timezone.now() + timedelta(days=30))
    days_pass(10)
    end(status)
    days_pass(6.5)
    assert keys() == 1
    days_pass(8)
    assert keys() == 0


def test_what_ended_soon_is_looked_at_once(tenant: Tenant) -> None:
    ask(tenant)
    end("sent")
    days_pass(7)
    assert keys() == 1
    days_pass(0.1)
    assert keys() == 0


@pytest.mark.parametrize("end_as", ["running", "paused", "planning"])
def test_a_blast_s_key_lives_as_long_as_the_blast_is_open(tenant: Tenant, end_as: str) -> None:
    first = plan(tenant, people(3), idempotency_key="k", launch=end_as != "planning")
    Blast.objects.update(state=end_as)
    days_pass(20)
    assert plan(tenant, people(3), idempotency_key="k", launch=False).blast_id == first.blast_id
    Blast.objects.update(state="finished", finished_at=timezone.now())
    days_pass(6.5)
    assert keys() == 1
    days_pass(1)
    assert keys() == 0


def test_a_blast_s_key_lives_as_long_as_a_send_of_it_can_be_redriven(tenant: Tenant) -> None:
    first = plan(tenant, people(3), idempotency_key="k")
    Blast.objects.update(state="finished", finished_at=timezone.now())
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO messaging_blast_counts (blast_id, status, n) VALUES (%s, 'failed', 1)", [first.blast_id]
        )
    days_pass(40)
    assert plan(tenant, people(3), idempotency_key="k").blast_id == first.blast_id
    Blast.objects.update(state="cancelled")
    days_pass(8)
    assert keys() == 0


def test_a_look_takes_a_few_pages_and_only_of_keys_that_are_due(tenant: Tenant) -> None:
    submit_some(tenant, 1, idempotency_key="k")
    insert_raw(tenant, 20_000)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO messaging_idempotency_keys (tenant_id, operation, key, request_digest, answer, keep_until)"
            " SELECT tenant_id, 'sends', id::text, '', jsonb_build_object('id', id), now() + interval '1 day'"
            " FROM messaging_sends"
        )
        cursor.execute(
            "UPDATE messaging_idempotency_keys SET keep_until = now() - interval '1 s'"
            " WHERE id IN (SELECT id FROM messaging_idempotency_keys ORDER BY id LIMIT 50)"
        )
        cursor.execute("ANALYZE messaging_sends, messaging_idempotency_keys")
    with transaction.atomic():
        found = generic_plan(PRUNE, {"limit": LIMIT, "days": 7})
        transaction.set_rollback(True)
    assert found.offences() == []
    assert found.buffers < 3_000, "50 keys: a few pages for each look-up, and for each row that is written"
