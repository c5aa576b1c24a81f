"""Which lanes are open, where an index sees it: judged from facts, marked by whoever changes them; and what says nothing goes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.utils import timezone

from messaging.domain.lane import LaneKey
from messaging.domain.rails import Channel, Rail
from messaging.ledger import lane_marks as clock_lanes
from messaging.ledger import lanes
from messaging.ledger.candidates import candidates
from messaging.ledger.lane_marks import judge_lanes, mark_missing, prune_lanes
from messaging.ledger.record import Failure
from messaging.models import DueLane, Send, TenantLane
from messaging.services.control import pause_tenant_lane, resume_tenant_lane
from tests.factories import insert_raw, make_blast, make_content, make_tenant, submit_some

pytestmark = pytest.mark.django_db(transaction=True)

EMAIL, CODES = Channel.EMAIL, Rail.TRANSACTIONAL


def _found() -> list[int]:
    return [lane.tenant for lane in candidates(EMAIL, CODES, 0, cursor=0, starved=(), max_batch=100)]


def _marks(**where: Any) -> int:
    return DueLane.objects.filter(**where).count()


# ------------------------------------------------------------------------------------------------------------- marks


def test_what_becomes_due_is_marked_by_every_way_there_is() -> None:
    tenant = make_tenant()
    [one] = submit_some(tenant, 1, not_before=timezone.now() + timedelta(hours=1))
    make_blast(tenant, 5)
    assert _marks() == 0, "scheduled, and of a blast"
    for before in ("scheduled", "sending", "failed"):
        Send.objects.filter(pk=one.id).update(status=before, batch_id=one.id)
        Send.objects.filter(pk=one.id).update(status="queued")
        assert (_marks(tenant_id=tenant.pk, priority=0), _found()) == (1, [tenant.pk])
        DueLane.objects.all().delete()
    submit_some(tenant, 3)
    assert _marks() == 1, "one for each statement and lane"


def test_of_a_lane_s_marks_one_stays_while_something_is_due() -> None:
    tenant = make_tenant()
    for _ in range(4):
        submit_some(tenant, 1)
    judge_lanes()
    assert (_marks(), _marks(judged=True, closed_until=None), _found()) == (1, 1, [tenant.pk])
    Send.objects.update(status="sent", accepted_at=timezone.now())
    judge_lanes()
    assert _marks() == 0
    assert judge_lanes() == 0


def test_a_mark_that_is_not_committed_yet_is_not_lost_with_those_that_are() -> None:
    """A submit is under way while the clock finds that its tenant has nothing due any more."""
    tenant = make_tenant()
    submit_some(tenant, 1)
    content = make_content(tenant)
    keys = ("dbname", "user", "password", "host", "port")
    with psycopg.connect(**{k: v for k, v in connection.get_connection_params().items() if k in keys}) as other:
        other.execute(
            "INSERT INTO messaging_sends (id, tenant_id, content_id, channel, category, rail, priority, status, fingerprint,"
            " sealed, attempts) VALUES (gen_random_uuid(), %s, %s, 'email', 'transactional', 'transactional', 0, 'queued',"
            " '\\x00', '\\x00', 0)",
            [tenant.pk, content],
        )
        Send.objects.update(status="sent", accepted_at=timezone.now())
        judge_lanes()
        assert _found() == []
        other.commit()
    assert _found() == [tenant.pk]
    judge_lanes()
    assert _found() == [tenant.pk]


def test_a_lane_that_is_opened_while_the_clock_still_sees_it_closed_is_found() -> None:
    tenant = make_tenant(active=False)
    insert_raw(tenant, 1, category="transactional")
    judge_lanes()
    keys = ("dbname", "user", "password", "host", "port")
    with psycopg.connect(**{k: v for k, v in connection.get_connection_params().items() if k in keys}) as other:
        other.execute("UPDATE core_tenants SET active = true WHERE id = %s", [tenant.pk])
        DueLane.objects.update(closed_until=timezone.now() - timedelta(seconds=1))
        judge_lanes()
        other.commit()
    assert _found() == [tenant.pk]


def test_a_second_clock_leaves_the_marks_to_the_first() -> None:
    submit_some(make_tenant(), 1)
    keys = ("dbname", "user", "password", "host", "port")
    with psycopg.connect(**{k: v for k, v in connection.get_connection_params().items() if k in keys}) as other:
        other.execute(clock_lanes._MINE)
        assert judge_lanes() == 0
    assert judge_lanes() == 1


def test_the_end_of_a_hold_is_noticed_without_anybody_s_help() -> None:
    tenant = make_tenant()
    submit_some(tenant, 3)
    with transaction.atomic():
        lanes.hold(EMAIL, CODES, LaneKey(tenant.pk, None, 0), Failure("refused"), 30)
    judge_lanes()
    until = TenantLane.objects.get().held_until
    assert [lane.closed_until for lane in DueLane.objects.all()] == [until]
    with connection.cursor() as cursor:  # as if the time had passed: no trigger sees that
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("UPDATE messaging_tenant_lanes SET held_until = now()")
        cursor.execute("SET session_replication_role = DEFAULT")
    DueLane.objects.update(closed_until=timezone.now())
    judge_lanes()
    assert [(lane.tenant, lane.trial) for lane in candidates(EMAIL, CODES, 0, cursor=0, starved=(), max_batch=9)] == [
        (tenant.pk, True)
    ]


def test_what_came_into_the_ledger_without_its_triggers_is_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_lanes, "_Place", type("_Place", (), {"after": 0, "due": clock_lanes._START}))
    tenants = [make_tenant() for _ in range(5)]
    for tenant in tenants:
        submit_some(tenant, 2)
    submit_some(tenants[0], 2, category="marketing")
    DueLane.objects.all().delete()
    assert (mark_missing(), mark_missing()) == (6, 0)
    assert _found() == [tenant.pk for tenant in tenants]


# ------------------------------------------------------------------------------------------------- rows that say nothing


def test_a_lane_that_is_released_or_resumed_leaves_no_row() -> None:
    tenant = make_tenant()
    pause_tenant_lane(tenant, EMAIL, CODES)
    key = LaneKey(tenant.pk, None, 0)
    with transaction.atomic():
        lanes.isolate(EMAIL, CODES, [key])
    resume_tenant_lane(tenant, EMAIL, CODES)
    assert [(lane.priority, lane.isolated) for lane in TenantLane.objects.all()] == [(0, True)]
    pause_tenant_lane(tenant, EMAIL, CODES)
    with transaction.atomic():
        lanes.release(EMAIL, CODES, [key])
    assert set(TenantLane.objects.values_list("priority", "isolated", "paused")) == {(0, False, True), (1, False, True)}
    resume_tenant_lane(tenant, EMAIL, CODES)
    assert TenantLane.objects.count() == 0


def test_rows_of_lanes_released_long_ago_are_deleted_and_no_others() -> None:
    said = (
        {"paused": True},
        {"isolated": True},
        {"isolated": True, "hold_code": "refused", "held_until": timezone.now()},
    )
    for i in range(6):
        tenant = make_tenant()
        for rail, priority in (("marketing", 2), ("transactional", 1)):
            values = said[i % 3] if priority == 2 else {}
            TenantLane.objects.create(tenant=tenant, channel="email", rail=rail, priority=priority, **values)
    keys = ("dbname", "user", "password", "host", "port")
    with psycopg.connect(**{k: v for k, v in connection.get_connection_params().items() if k in keys}) as other:
        other.execute("SELECT FROM core_tenants WHERE id = %s FOR NO KEY UPDATE", [tenant.pk])
        assert prune_lanes() == 5, (
            "that of a tenant whose lanes somebody writes at this moment is left for the next time"
        )
        other.rollback()
    assert (prune_lanes(), prune_lanes(), TenantLane.objects.count()) == (1, 0, 6)
