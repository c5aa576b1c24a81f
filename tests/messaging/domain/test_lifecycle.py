"""The steps of a send are one table; here it is checked against itself and against what the ledger really does."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.utils import timezone

from core.models import ProcessedJob
from core.security.ids import new_id
from messaging.domain.lifecycle import BLAST_STEPS, OPEN, SEND_STEPS, BlastState, SendStatus, sources
from messaging.ledger import record
from messaging.ledger.record import Failure
from messaging.models import Batch, Send
from tests.factories import insert_raw, make_tenant

S = SendStatus


def test_every_status_has_its_steps() -> None:
    assert set(SEND_STEPS) == set(SendStatus)
    assert set(BLAST_STEPS) == set(BlastState)


def test_what_has_ended_stays_ended() -> None:
    for final in (S.SENT, S.EXPIRED, S.CANCELLED):
        assert SEND_STEPS[final] == frozenset()


def test_only_a_bound_send_can_be_sent() -> None:
    assert sources(S.SENT) == ["ambiguous", "sending"]


def test_a_send_is_bound_only_from_the_queue() -> None:
    assert sources(S.SENDING) == ["queued"]


def test_every_open_status_leads_to_an_end() -> None:
    for status in OPEN:
        seen, todo = set(), [status]
        while todo:
            here = todo.pop()
            seen.add(here)
            todo += SEND_STEPS[here] - seen
        assert S.SENT in seen


@pytest.mark.django_db
@pytest.mark.parametrize("before", list(SendStatus))
@pytest.mark.parametrize("step", ["accept", "fail", "give_back", "back_off", "leave_ambiguous"])
def test_the_ledger_takes_no_step_that_is_not_in_the_table(before: SendStatus, step: str) -> None:
    """Each statement, on a send in each status, bound to the batch: it changes by an allowed step, or not at all."""
    insert_raw(make_tenant(), 1)
    batch = new_id()
    Send.objects.update(status=before, batch_id=batch, accepted_at=timezone.now() if before is S.SENT else None)
    send = Send.objects.get()
    Batch.objects.create(
        id=batch,
        provider="resend",
        channel="email",
        rail="marketing",
        send_ids=[send.pk],
        digest=b"",
        idempotency_key="k",
        rendered_at=timezone.now(),
    )
    why = Failure("code", "words")
    match step:
        case "accept":
            record.accept(batch, {send.pk: "p"})
        case "fail":
            record.fail(batch, {send.pk: why})
        case "give_back":
            record.give_back(batch, {send.pk: None}, counted=False, why=why)
        case "back_off":
            record.give_back(batch, {send.pk: 5.0}, counted=True, why=why)
        case "leave_ambiguous":
            record.leave_ambiguous(batch, why)
    after = SendStatus(Send.objects.get().status)
    assert after is before or after in SEND_STEPS[before]
    target = {"accept": S.SENT, "fail": S.FAILED, "give_back": S.QUEUED, "back_off": S.SCHEDULED}.get(step, S.AMBIGUOUS)
    if before is S.SENDING:
        assert after is target


@pytest.mark.django_db
def test_a_send_bound_to_another_batch_is_not_touched() -> None:
    insert_raw(make_tenant(), 1)
    Send.objects.update(status=S.SENDING, batch_id=uuid4())
    send = Send.objects.get()
    why = Failure("code")
    record.accept(new_id(), {send.pk: "p"})
    record.fail(new_id(), {send.pk: why})
    record.give_back(new_id(), {send.pk: None}, counted=True, why=why)
    assert Send.objects.values().get() == {
        field.attname: getattr(send, field.attname) for field in Send._meta.concrete_fields
    }


@pytest.mark.django_db
def test_only_the_holder_of_the_fence_ends_a_batch() -> None:
    batch = new_id()
    Batch.objects.create(
        id=batch,
        provider="resend",
        channel="email",
        rail="marketing",
        send_ids=[batch],
        digest=b"",
        idempotency_key="k",
        rendered_at=timezone.now(),
    )
    ProcessedJob.objects.create(job_key=f"batch:{batch}", lease_until=timezone.now(), fence=2)
    assert not record.finish(batch, 1, "accepted")
    assert not record.keep_bound(batch, 1, 1.0, Failure("x"))
    assert Batch.objects.get().state == "claimed"
    assert record.finish(batch, 2, "accepted")
    assert not record.finish(batch, 2, "ambiguous")
    assert (Batch.objects.get().state, ProcessedJob.objects.get().done_at is not None) == ("accepted", True)
