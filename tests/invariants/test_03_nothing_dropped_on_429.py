"""Invariant 3: a 429 drops nothing and counts no attempt. At any moment, per blast and in all, every submitted send is in
exactly one status, and the counts add up."""

from __future__ import annotations

import random

import pytest

from core.models import DeadLetter
from messaging.clock import run_once
from messaging.dispatch.outcomes import MAX_ATTEMPTS
from messaging.domain.lifecycle import SendStatus
from messaging.domain.rails import Rail
from messaging.models import Batch, Send
from tests.factories import make_tenant, statuses, submit_some
from tests.rig import Rig


def test_a_storm_of_429s_loses_nothing_and_counts_nothing(rig: Rig) -> None:
    submit_some(make_tenant(), 120)
    rig.sandbox.fault("429", count=12, retry_after=1)
    for _ in range(12):
        rig.unblock()
        rig.turn()
        assert statuses() == {"queued": 120}
    assert set(Send.objects.values_list("attempts", flat=True)) == {0}
    rig.unblock()
    rig.drain()
    assert (statuses(), DeadLetter.objects.count(), rig.sandbox.stats()["doubles"]) == ({"sent": 120}, 0, 0)


def test_429_on_the_last_attempt_is_not_the_last_attempt(rig: Rig) -> None:
    submit_some(make_tenant(), 2)
    Send.objects.update(attempts=MAX_ATTEMPTS - 1)
    rig.sandbox.fault("429", count=1, retry_after=1)
    rig.turn()
    assert statuses() == {"queued": 2}
    rig.unblock()
    rig.turn()
    assert statuses() == {"sent": 2}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_at_any_moment_every_send_is_in_exactly_one_status_and_bound_ones_belong_to_their_batch(
    rig: Rig, seed: int
) -> None:
    dice = random.Random(seed)
    tenants = [make_tenant() for _ in range(4)]
    faults = ["429", "500", "drop_after_accept", "drop_before", "cut_body", "422", "401", "too_few_ids", "503"]
    submitted = 0
    for _ in range(60):
        match dice.randrange(5):
            case 0:
                count = dice.randint(1, 60)
                submit_some(
                    dice.choice(tenants), count, category=dice.choice(["transactional", "marketing", "product"])
                )
                submitted += count
            case 1:
                rig.sandbox.fault(dice.choice(faults), count=1)
            case 2:
                rig.unblock()
                rig.lapse_leases()
            case 3:
                run_once()
            case _:
                rig.turn(dice.choice(list(Rail)))
        counts = statuses()
        assert sum(counts.values()) == submitted
        assert set(counts) <= set(SendStatus)
        _bound_sends_are_in_their_batch()
    assert rig.sandbox.stats()["doubles"] == 0
    assert len(set(rig.accepted_ids())) >= statuses().get("sent", 0)


def _bound_sends_are_in_their_batch() -> None:
    held = {
        pk
        for ids in Batch.objects.filter(state__in=["claimed", "unknown"]).values_list("send_ids", flat=True)
        for pk in ids
    }
    assert set(Send.objects.filter(status="sending").values_list("pk", flat=True)) == held
