"""A batch that was taken over: its first worker can add an acceptance, and nothing else."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db import transaction

from core.models import ProcessedJob
from messaging.domain.lifecycle import BatchState
from messaging.ledger import recover
from messaging.ledger.record import Failure, finish, finish_accepted_late, keep_bound
from tests.factories import make_tenant, submit_some
from tests.rig import Rig

WHY = Failure("test")


def _taken_over(rig: Rig) -> UUID:
    """A batch whose first answer was lost, now under fence 2."""
    rig.sandbox.fault("too_few_ids", count=1, missing=1)
    submit_some(make_tenant(), 3)
    rig.turn()
    rig.lapse_leases()
    batch = rig.batch().pk
    with transaction.atomic():
        taken = recover.take_over(batch)
    assert taken is not None
    assert (taken.fence, taken.attempts) == (2, 2)
    with transaction.atomic():
        assert recover.take_over(batch) is None
    return batch


def _lease() -> datetime:
    return ProcessedJob.objects.get().lease_until


def test_an_unknown_answer_moves_the_lease_of_whoever_holds_the_batch_alone(rig: Rig) -> None:
    batch, before = _taken_over(rig), _lease()
    with transaction.atomic():
        assert not keep_bound(batch, 1, 600.0, WHY)
    assert _lease() == before
    with transaction.atomic():
        assert keep_bound(batch, 2, 600.0, WHY)
    assert (_lease() - before).total_seconds() > 500


def test_a_fenced_out_worker_ends_nothing_but_by_an_acceptance(rig: Rig) -> None:
    batch = _taken_over(rig)
    for state in (BatchState.ACCEPTED, BatchState.RATE_LIMITED, BatchState.AMBIGUOUS):
        with transaction.atomic():
            assert not finish(batch, 1, state, WHY)
    assert (rig.batch().state, ProcessedJob.objects.get().done_at) == (BatchState.UNKNOWN, None)
    with transaction.atomic():
        assert finish_accepted_late(batch, BatchState.ACCEPTED)
    assert rig.batch().state == BatchState.ACCEPTED
    assert ProcessedJob.objects.get().done_at is not None
    with transaction.atomic():
        assert not keep_bound(batch, 2, 600.0, WHY)
        assert not finish(batch, 2, BatchState.AMBIGUOUS, WHY)
    assert rig.batch().state == BatchState.ACCEPTED
