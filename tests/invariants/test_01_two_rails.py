"""Invariant 1: exactly two rails a channel; category → rail at submit, as a database CHECK, and again at claim. No
marketing send on the transactional rail."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from core.models import DeadLetter
from messaging.dispatch import turn
from messaging.dispatch.scheduler import Grant, search
from messaging.domain.rails import PRIORITIES, PRIORITY_OF, RAIL_OF, Category, Channel, Rail, queue_name
from messaging.models import Blast, Send
from messaging.providers.registry import adapter_for, adapters
from messaging.tasks import dramatiq
from tests.factories import make_blast, make_tenant, request, statuses, submit_some
from tests.rig import Rig, prepare


def test_category_to_rail_is_total_and_there_are_two_rails() -> None:
    assert len(Rail) == 2
    assert {c: RAIL_OF[c] for c in Category} == {
        Category.TRANSACTIONAL: Rail.TRANSACTIONAL,
        Category.PRODUCT: Rail.TRANSACTIONAL,
        Category.MARKETING: Rail.MARKETING,
    }
    assert sorted(p for rail in Rail for p in PRIORITIES[rail]) == sorted(PRIORITY_OF.values())


def test_every_channel_with_a_provider_has_one_queue_and_one_actor_for_each_rail() -> None:
    broker = dramatiq.get_broker()
    queues = {actor.queue_name for actor in broker.actors.values()}
    assert queues == {queue_name(channel, rail) for channel in adapters() for rail in Rail}


@pytest.mark.django_db
@pytest.mark.parametrize("category", list(Category))
@pytest.mark.parametrize("rail", list(Rail))
@pytest.mark.parametrize("priority", [0, 1, 2])
def test_the_database_refuses_a_category_on_another_rail(category: str, rail: str, priority: int) -> None:
    right = (rail, priority) == (RAIL_OF[Category(category)], PRIORITY_OF[Category(category)])
    tenant = make_tenant()
    send = submit_some(tenant, 1)[0]
    blast = make_blast(tenant, 0)
    for model, pk in ((Send, send.id), (Blast, blast.pk)):
        values: dict[str, Any] = {"category": category, "rail": rail, "priority": priority}
        if right:
            model.objects.filter(pk=pk).update(**values)
        else:
            with pytest.raises(IntegrityError, match="category_rail"), transaction.atomic():
                model.objects.filter(pk=pk).update(**values)


@pytest.mark.parametrize("category", list(Category))
def test_the_category_alone_decides_the_rail_at_submit(rig: Rig, category: Category) -> None:
    tenant = make_tenant()
    submitted = submit_some(tenant, 1, category=category)[0]
    assert submitted.rail is RAIL_OF[category]
    assert Send.objects.get().rail == RAIL_OF[category]
    assert "rail" not in request(tenant)


def test_the_transactional_rail_takes_no_marketing_send(rig: Rig) -> None:
    tenant = make_tenant()
    submit_some(tenant, 50, category="marketing")
    submit_some(tenant, 5)
    submit_some(tenant, 5, category="product")
    rig.drain(Rail.TRANSACTIONAL)
    assert statuses(category="marketing") == {"queued": 50}
    assert statuses(rail="transactional") == {"sent": 10}


def test_a_send_that_slipped_past_the_check_stops_the_claim(rig: Rig) -> None:
    """Without the CHECK, a marketing send on the transactional rail is found at the claim, and nothing is sent."""
    submit_some(make_tenant(), 1)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE messaging_sends DROP CONSTRAINT messaging_sends_category_rail")
    try:
        Send.objects.update(category="marketing")
        line = turn.Line(adapter_for(Channel.EMAIL), rig.governor, Channel.EMAIL, Rail.TRANSACTIONAL)  # type: ignore[arg-type]
        grant = search(line.adapter, line.governor, line.channel, line.rail, line.memory)
        assert isinstance(grant, Grant)
        assert prepare(line, grant) is None
        assert (statuses(), rig.sandbox.stats()["requests_received"]) == ({"failed": 1}, 0)
        assert DeadLetter.objects.get().reason == "wrong_rail"
        assert rig.governor.spent() == 0
    finally:
        Send.objects.all().delete()
        with connection.schema_editor() as editor:
            editor.add_constraint(
                Send, next(c for c in Send._meta.constraints if c.name == "messaging_sends_category_rail")
            )
