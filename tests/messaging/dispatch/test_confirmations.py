"""What becomes of sends whose answer was lost, at providers that can be asked, and at those that can not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from core.models import DeadLetter
from messaging.domain.lifecycle import BatchState
from messaging.domain.rails import Channel
from messaging.ledger.claim import LEASE
from messaging.models import Batch, Send
from messaging.providers.registry import adapters
from tests.factories import make_tenant, statuses, submit_some
from tests.messaging.providers.confirmations import AtMostOnce, Verifiable
from tests.rig import Rig


@pytest.fixture
def verifiable(rig: Rig) -> Rig:
    adapters()[Channel.EMAIL] = Verifiable(api_key="re_sandbox", base_url=rig.sandbox.url)
    return rig


@pytest.fixture
def at_most_once(rig: Rig) -> Rig:
    adapters()[Channel.EMAIL] = AtMostOnce(api_key="re_sandbox", base_url=rig.sandbox.url)
    return rig


def _age(seconds: float) -> None:
    """As if every batch had been claimed so long ago, and its next try were due."""
    Batch.objects.update(created_at=timezone.now() - timedelta(seconds=seconds))


def _questions(rig: Rig) -> int:
    """Tokens that were taken for no e-mail request."""
    return rig.governor.spent() - int(rig.sandbox.stats()["requests_received"])


SETTLED = LEASE + Verifiable.settle_seconds + 1


# ---------------------------------------------------------------------------------------------------------- verifiable


def test_what_the_provider_has_is_sent_and_never_sent_again(verifiable: Rig) -> None:
    submit_some(make_tenant(), 3)
    verifiable.sandbox.fault("drop_after_accept", count=1)
    verifiable.turn()
    assert (statuses(), verifiable.batch().state) == ({"sending": 3}, BatchState.UNKNOWN)
    verifiable.lapse_leases()
    verifiable.turn()
    assert (statuses(), verifiable.batch().state) == ({"sent": 3}, BatchState.ACCEPTED)
    ids = {line["tags"]["send_id"]: line["id"] for line in verifiable.sandbox.log()}
    assert {str(s.pk): s.provider_id for s in Send.objects.all()} == ids
    assert (len(ids), verifiable.sandbox.stats()["doubles"], _questions(verifiable)) == (3, 0, 1)


def test_not_found_before_lease_and_settle_time_proves_nothing(verifiable: Rig) -> None:
    submit_some(make_tenant(), 3)
    verifiable.sandbox.fault("drop_before", count=1)
    verifiable.turn()
    for age in (2, 30, LEASE + Verifiable.settle_seconds - 1):
        _age(age)
        verifiable.lapse_leases()
        verifiable.turn()
        assert (statuses(), verifiable.batch().state) == ({"sending": 3}, BatchState.UNKNOWN)
    assert verifiable.governor.spent() == 1 + 3, "each question took a token"
    assert verifiable.sandbox.stats()["emails_accepted"] == 0


def test_after_a_not_found_the_next_question_comes_when_it_counts(verifiable: Rig) -> None:
    submit_some(make_tenant(), 1)
    verifiable.sandbox.fault("drop_before", count=1)
    verifiable.turn()
    verifiable.lapse_leases()
    verifiable.turn()
    assert verifiable.turn() is None
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM j.lease_until - b.created_at)::float8 FROM core_processed_jobs j"
            " JOIN messaging_batches b ON j.job_key = 'batch:' || b.id"
        )
        assert cursor.fetchone()[0] == pytest.approx(LEASE + Verifiable.settle_seconds, abs=3)


def test_not_found_after_that_lets_the_sends_go_back_for_a_fresh_batch(verifiable: Rig) -> None:
    submit_some(make_tenant(), 3)
    verifiable.sandbox.fault("drop_before", count=1)
    verifiable.turn()
    _age(SETTLED)
    verifiable.lapse_leases()
    verifiable.turn()
    first = verifiable.batch()
    assert (statuses(), first.state) == ({"scheduled": 3}, BatchState.NOT_SENT)
    assert set(Send.objects.values_list("attempts", flat=True)) == {1}
    Send.objects.update(status="queued")
    verifiable.turn()
    assert statuses() == {"sent": 3}
    second = verifiable.batches()[1]
    assert second.idempotency_key != first.idempotency_key
    assert (verifiable.sandbox.stats()["emails_accepted"], verifiable.sandbox.stats()["doubles"]) == (3, 0)


def test_of_a_batch_that_was_taken_in_part_only_the_missing_ones_go_back(verifiable: Rig) -> None:
    good = submit_some(make_tenant(), 2)
    missing = submit_some(make_tenant(), 1, to="nobody@example.com")[
        0
    ]  # refused by the sandbox, and the answer is lost
    verifiable.sandbox.fault("drop_after_accept", count=1)
    verifiable.turn()
    _age(SETTLED)
    verifiable.lapse_leases()
    verifiable.turn()
    assert {s.pk: s.status for s in Send.objects.all()} == {
        good[0].id: "sent",
        good[1].id: "sent",
        missing.id: "scheduled",
    }
    assert verifiable.batch().state == BatchState.PARTIAL


@pytest.mark.parametrize("trouble", ["unreachable", "forbidden"])
def test_a_question_that_is_not_answered_is_asked_again(
    verifiable: Rig, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    submit_some(make_tenant(), 3)
    verifiable.sandbox.fault("drop_after_accept", count=1)
    verifiable.turn()
    good = adapters()[Channel.EMAIL]
    url = "http://127.0.0.1:1" if trouble == "unreachable" else f"{verifiable.sandbox.url}/nowhere"
    adapters()[Channel.EMAIL] = Verifiable(api_key="re_sandbox", base_url=url)
    _age(SETTLED)
    verifiable.lapse_leases()
    verifiable.turn()
    assert (statuses(), verifiable.batch().state) == ({"sending": 3}, BatchState.UNKNOWN)
    adapters()[Channel.EMAIL] = good
    verifiable.lapse_leases()
    verifiable.turn()
    assert (statuses(), verifiable.sandbox.stats()["doubles"]) == ({"sent": 3}, 0)


def test_a_question_probes_an_open_circuit(verifiable: Rig) -> None:
    """Unknown batches take turns with due ones; a question is a request like any other."""
    verifiable.sandbox.fault("drop_after_accept", count=3)
    for name in "abc":
        submit_some(make_tenant(name), 1)
        verifiable.turn()
    assert verifiable.circuit() == "unreachable"
    verifiable.unblock()
    verifiable.redis.hset(verifiable.governor.keys[0], "probe_next", "replay")
    verifiable.lapse_leases()
    verifiable.turn()
    assert (statuses(), verifiable.circuit()) == ({"sending": 2, "sent": 1}, "")
    assert verifiable.sandbox.stats()["requests_received"] == 3


def test_a_deploy_that_changes_rendering_does_not_matter_where_one_can_ask(verifiable: Rig) -> None:
    submit_some(make_tenant(), 3)
    verifiable.sandbox.fault("drop_after_accept", count=1)
    verifiable.turn()
    Batch.objects.update(digest=b"another rendering".ljust(32, b"."))
    verifiable.lapse_leases()
    verifiable.turn()
    assert statuses() == {"sent": 3}


# -------------------------------------------------------------------------------------------------------- at most once


@pytest.mark.parametrize("fault", ["drop_after_accept", "500", "cut_body", "too_few_ids", "concurrent_409"])
def test_an_unknown_answer_leaves_each_send_ambiguous_and_listed(at_most_once: Rig, fault: str) -> None:
    sends = submit_some(make_tenant(), 3)
    at_most_once.sandbox.fault(fault, count=1)
    at_most_once.turn()
    listed = Send.objects.filter(status="ambiguous").values_list("pk", flat=True)
    assert set(listed) == {s.id for s in sends}
    assert (at_most_once.batch().state, DeadLetter.objects.count()) == (BatchState.AMBIGUOUS, 0)
    at_most_once.lapse_leases()
    assert at_most_once.turn() is None
    assert at_most_once.sandbox.stats()["requests_received"] == 1


def test_an_open_circuit_is_probed_with_one_send(at_most_once: Rig) -> None:
    at_most_once.sandbox.fault("500")
    for name in "abc":
        submit_some(tenant := make_tenant(name), 1)
        at_most_once.turn()
    assert at_most_once.circuit() == "unreachable"
    submit_some(tenant, 50)
    for n in range(1, 4):
        at_most_once.unblock()
        at_most_once.turn()
        assert statuses() == {"ambiguous": 3 + n, "queued": 50 - n}
    at_most_once.sandbox.clear_faults()
    at_most_once.unblock()
    at_most_once.turn()
    assert (statuses(), at_most_once.circuit()) == ({"ambiguous": 6, "queued": 46, "sent": 1}, "")
    at_most_once.drain()
    assert statuses() == {"ambiguous": 6, "sent": 47}


def test_what_certainly_did_not_arrive_goes_back_as_everywhere(at_most_once: Rig) -> None:
    submit_some(make_tenant(), 3)
    at_most_once.sandbox.fault("429", count=1)
    at_most_once.turn()
    assert statuses() == {"queued": 3}
