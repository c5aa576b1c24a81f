"""Invariant 2: every provider request passes the buckets, no bypass: tokens spent ≥ requests counted at the provider, equal
without faults. A provider without a global bucket row is not sent to."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from messaging.dispatch import turn
from messaging.domain.rails import Rail
from messaging.ledger import buckets
from messaging.models import RateLimitBucket
from tests.factories import make_tenant, statuses, submit_some
from tests.rig import Rig

MESSAGING = Path(__file__).parents[2] / "messaging"


def _requests(rig: Rig) -> int:
    return int(rig.sandbox.stats()["requests_received"])


def test_tokens_spent_equal_the_requests_at_the_provider(rig: Rig) -> None:
    dice = random.Random(1)
    tenants = [make_tenant() for _ in range(10)]
    for _ in range(30):
        submit_some(dice.choice(tenants), dice.randint(1, 80), category=dice.choice(["transactional", "marketing"]))
        rig.turn(dice.choice(list(Rail)))
    for rail in Rail:
        rig.drain(rail)
    assert set(statuses()) == {"sent"}
    assert rig.governor.spent() == _requests(rig) > 10


def test_replays_and_probes_take_tokens_too(rig: Rig) -> None:
    submit_some(make_tenant(), 250)
    for fault in ("500", "drop_after_accept", "422", "429", "401", "cut_body"):
        rig.sandbox.fault(fault, count=1)
    for _ in range(20):
        rig.unblock()
        rig.lapse_leases()
        rig.turn()
    assert rig.governor.spent() == _requests(rig)


class _Killed(BaseException):
    """As kill −9 would: nothing of ours catches it."""


def test_tokens_spent_are_never_fewer_when_a_worker_dies_before_its_request(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_some(make_tenant(), 3)

    def die(*_: object) -> None:
        raise _Killed

    monkeypatch.setattr(turn, "_call", die)
    with pytest.raises(_Killed):
        rig.turn()
    monkeypatch.undo()
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.governor.spent(), _requests(rig)) == ({"sent": 3}, 2, 1)


def test_without_a_global_bucket_no_request_is_made(rig: Rig) -> None:
    submit_some(make_tenant(), 3)
    RateLimitBucket.objects.filter(scope="global").delete()
    buckets.forget()
    rig.turn()
    assert (statuses(), _requests(rig)) == ({"queued": 3}, 0)


def test_only_one_place_sends_through_an_adapter_and_it_is_behind_the_governor() -> None:
    """`adapter.send(…)` is called in `dispatch.turn._call` and nowhere else."""
    found = [
        f"{path.relative_to(MESSAGING)}: {ast.unparse(node.func)}"
        for path in MESSAGING.rglob("*.py")
        if "providers" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("send", "request", "post", "get_adapter")
        and "adapter" in ast.unparse(node.func.value)
    ]
    assert found == ["dispatch/turn.py: adapter.send"]
