"""Each condition of the claim and of the fence: what it keeps out, if it has come true since somebody looked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from core.db.cursor import ledger_cursor
from core.models import Tenant
from core.security.ids import new_id
from messaging.dispatch import outcomes, turn
from messaging.dispatch.forming import form_batch
from messaging.dispatch.recording import record_answer
from messaging.dispatch.scheduler import Grant, memory_of, search
from messaging.domain.lifecycle import BatchState
from messaging.domain.rails import Channel, Rail
from messaging.ledger import claim, record
from messaging.ledger.batch import Bound
from messaging.ledger.claim import Take
from messaging.models import Batch, Blast, Send, TenantLane
from messaging.providers.base import Answer, Verdict
from messaging.providers.registry import adapters
from messaging.services.redrive import redrive
from tests.factories import hint_due, make_blast, make_tenant, statuses, submit_some
from tests.messaging.providers.confirmations import Verifiable
from tests.rig import Rig, prepare


def _line(rail: Rail) -> turn.Line:
    return turn.Line(adapters()[Channel.EMAIL], turn.governor_of("resend"), Channel.EMAIL, rail)


def _grant(rail: Rail) -> Grant:
    line = _line(rail)
    found = search(line.adapter, line.governor, line.channel, rail, memory_of("resend", line.channel, rail))
    assert isinstance(found, Grant)
    return found


def _claimed(rail: Rail = Rail.TRANSACTIONAL) -> Bound:
    """As far as a worker gets that dies, or is frozen, right after its commit."""
    bound = prepare(_line(rail), _grant(rail))
    assert bound is not None
    return bound


def _record(bound: Bound, answer: Answer) -> None:
    outcome = outcomes.rule(
        answer.verdict, bound=bound.replay, confirmation=_line(Rail.TRANSACTIONAL).adapter.confirmation
    )
    record_answer(_line(Rail.TRANSACTIONAL).adapter, Rail.TRANSACTIONAL, bound, answer, outcome)


# ---------------------------------------------------------------------------------------------------------- the claim

HELD = {"hold_code": "refused", "held_until": timezone.now() + timedelta(days=999)}

CHANGES: dict[str, tuple[bool, Callable[[Tenant], object]]] = {
    "single sends of a tenant that was deactivated": (False, lambda t: Tenant.objects.update(active=False)),
    "single sends of a lane that was paused": (False, lambda t: _lane(t, paused=True)),
    "single sends of a lane that was held": (False, lambda t: _lane(t, **HELD)),
    "a blast of a tenant that was deactivated": (True, lambda t: Tenant.objects.update(active=False)),
    "a blast that was paused": (True, lambda t: Blast.objects.update(state="paused")),
    "a blast that was cancelled": (True, lambda t: Blast.objects.update(state="cancelled")),
    "a blast that was held": (True, lambda t: Blast.objects.update(**HELD)),
}


def _lane(tenant: Tenant, **values: object) -> None:
    TenantLane.objects.create(tenant=tenant, channel="email", rail="marketing", **{"priority": 2} | values)


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_stopped_between_search_and_claim_is_not_claimed(rig: Rig, what: str) -> None:
    in_blast, change = CHANGES[what]
    tenant = make_tenant()
    sends = submit_some(tenant, 3, category="marketing")
    if in_blast:
        blast = make_blast(tenant, 0)
        hint_due(blast)
        Send.objects.filter(pk__in=[s.id for s in sends]).update(blast=blast)
    grant = _grant(Rail.MARKETING)
    assert sum(take.sends for take in grant.takes) == 3
    change(tenant)
    claimed = form_batch(adapters()[Channel.EMAIL], Channel.EMAIL, Rail.MARKETING, grant.batch, grant.takes)
    assert (claimed.formed, statuses()) == (None, {"queued": 3})


def test_a_lane_that_is_held_for_another_priority_is_claimed(rig: Rig) -> None:
    tenant = make_tenant()
    submit_some(tenant, 3, category="marketing")
    grant = _grant(Rail.MARKETING)
    _lane(tenant, priority=1, **HELD)
    assert form_batch(adapters()[Channel.EMAIL], Channel.EMAIL, Rail.MARKETING, grant.batch, grant.takes).formed


@pytest.mark.parametrize(
    ("channel", "rail"), [(Channel.EMAIL, Rail.TRANSACTIONAL), (Channel.SMS, Rail.MARKETING)], ids=["rail", "channel"]
)
def test_a_claim_for_another_rail_or_channel_takes_nothing(rig: Rig, channel: Channel, rail: Rail) -> None:
    """Whatever the grant says: it was made by code that may be wrong."""
    blast = make_blast(make_tenant(), 3)
    with transaction.atomic():
        assert claim.take(channel, rail, 2, new_id(), [Take(blast.tenant_id, 2, blast.pk, 3)]) == ([], 0)
    assert statuses() == {"queued": 3}


# ---------------------------------------------------------------------------------------------------------- the fence


def test_recording_and_taking_over_lock_the_batch_first_and_never_each_other_out(rig: Rig) -> None:
    """Whoever takes a batch over has its row and then changes its job; an answer that comes meanwhile must not hold the job."""
    submit_some(make_tenant(), 3)
    bound = _claimed()

    def finish() -> bool:
        try:
            with transaction.atomic():
                return record.finish(bound.id, bound.fence, BatchState.ACCEPTED)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(), ledger_cursor() as sql:
            sql.run("SELECT FROM messaging_batches WHERE id = %(id)s FOR UPDATE", {"id": bound.id})
            other = pool.submit(finish)
            while not sql.one("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
                assert not other.done()
                sql.run("SELECT pg_stat_clear_snapshot()")
            sql.run("SET LOCAL lock_timeout = '5s'")
            sql.run(
                "UPDATE core_processed_jobs SET fence = fence + 1 WHERE job_key = %(key)s", {"key": f"batch:{bound.id}"}
            )
        assert other.result(30) is False, "it reads the fence as the other one left it"


def test_a_batch_that_has_ended_is_not_changed_by_a_late_acceptance(rig: Rig) -> None:
    """Its sends went back for a fresh batch when the provider said, after lease and settle time, that it had none."""
    adapters()[Channel.EMAIL] = Verifiable(api_key="re_sandbox", base_url=rig.sandbox.url)
    submit_some(make_tenant(), 3)
    bound = _claimed()
    Batch.objects.update(created_at=timezone.now() - timedelta(seconds=100))
    rig.lapse_leases()
    rig.turn()
    before = list(Batch.objects.values()), list(Send.objects.order_by("id").values())
    assert (statuses(), rig.batch().state) == ({"scheduled": 3}, BatchState.NOT_SENT)
    _record(bound, Answer(Verdict.ACCEPTED, 200, provider_ids=("a", "b", "c")))
    assert (list(Batch.objects.values()), list(Send.objects.order_by("id").values())) == before


def test_a_late_acceptance_touches_no_send_that_another_batch_holds(rig: Rig) -> None:
    sends = submit_some(make_tenant(), 3)
    first = _claimed()
    Batch.objects.update(digest=b"another rendering".ljust(32, b"."))
    rig.lapse_leases()
    rig.turn()
    assert statuses() == {"ambiguous": 3}
    redrive(send_ids=[s.id for s in sends], accept_duplicates_by="a person")
    second = _claimed()
    _record(first, Answer(Verdict.ACCEPTED, 200, provider_ids=("a", "b", "c")))
    assert statuses() == {"sending": 3}
    assert set(Send.objects.values_list("batch_id", "provider_id")) == {(second.id, None)}
