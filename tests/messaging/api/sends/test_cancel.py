"""POST sends/{id}/cancel."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.utils import timezone

from core.security.ids import new_id
from messaging.domain.errors import Conflict
from messaging.domain.lifecycle import SendStatus
from messaging.domain.rails import Channel, Rail
from messaging.ledger.cancel import cancel_send
from messaging.ledger.claim import Take, lock_lanes, take
from messaging.models import Send
from tests.factories import insert_raw, make_blast, status_of, submit_some
from tests.factories import make_tenant as make_plain_tenant
from tests.messaging.tenant_rig import Speaker, error_of, make_tenant
from tests.rig import Rig


def cancel(speaker: Speaker, send_id: object, body: bytes = b"") -> Any:
    return speaker.client.post(
        f"/v1/messaging/sends/{send_id}/cancel", body, content_type="application/json", headers=speaker.headers()
    )


def test_a_queued_send_is_cancelled_once_and_for_all(speaker: Speaker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pk = speaker.send().json()["id"]
    first, again = cancel(speaker, pk), cancel(speaker, pk, b"{}")
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json() == speaker.get(pk).json()
    assert (first.json()["id"], first.json()["status"]) == (pk, "cancelled")
    assert [r.send for r in caplog.records if r.getMessage() == "send_cancelled"] == [pk]  # type: ignore[attr-defined]
    assert "@" not in caplog.text


def test_a_scheduled_send_is_cancelled(speaker: Speaker) -> None:
    pk = speaker.send(not_before=(timezone.now() + timedelta(hours=1)).isoformat()).json()["id"]
    assert cancel(speaker, pk).json()["status"] == "cancelled"


def test_a_send_of_a_blast_is_cancelled_alone(speaker: Speaker) -> None:
    make_blast(speaker.tenant, 3)
    pk = Send.objects.order_by("id").values_list("id", flat=True)[1]
    assert cancel(speaker, pk).json()["status"] == "cancelled"
    assert sorted(Send.objects.values_list("status", flat=True)) == ["cancelled", "queued", "queued"]


@pytest.mark.parametrize("status", sorted(set(SendStatus) - {"scheduled", "queued", "cancelled"}))
def test_what_cannot_be_cancelled_says_what_it_is(speaker: Speaker, status: str) -> None:
    insert_raw(speaker.tenant, 1)
    Send.objects.update(status=status, batch_id=new_id(), accepted_at=timezone.now())
    answer = cancel(speaker, Send.objects.get().pk)
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (409, "not_cancellable")
    assert f"is {status}:" in error["message"]
    assert Send.objects.get().status == status


def test_the_send_of_another_tenant_is_not_found(speaker: Speaker) -> None:
    other = Speaker.of(make_tenant("other", "other.example"))
    pk = speaker.send().json()["id"]
    theirs, unknown = cancel(other, pk), cancel(other, uuid4())
    assert theirs.status_code == unknown.status_code == 404
    assert theirs.content == unknown.content
    assert status_of(pk) == "queued"


@pytest.mark.parametrize("raw", ["1", "%00", "a" * 5000, "{00000000-0000-0000-0000-000000000000}", "\N{SNOWMAN}"])
def test_what_is_no_id_is_not_found(speaker: Speaker, raw: str) -> None:
    answer = cancel(speaker, raw)
    assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")


def test_without_a_key(speaker: Speaker) -> None:
    pk = speaker.send().json()["id"]
    assert speaker.client.post(f"/v1/messaging/sends/{pk}/cancel").status_code == 401
    assert status_of(pk) == "queued"


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_holds_the_send_is_waited_for() -> None:
    """And then the answer is what the claim made of it; not a send that is cancelled and sent all the same."""
    tenant = make_plain_tenant()
    insert_raw(tenant, 1)
    pk = Send.objects.get().pk
    held, answered = threading.Event(), threading.Event()

    def late() -> str:
        try:
            held.wait(10)
            cancel_send(tenant.pk, pk)
        except Conflict as error:
            return f"{error.code}: {error.message}"
        finally:
            answered.set()
            connection.close()
        return "cancelled"

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(late)
        takes = [Take(tenant=tenant.pk, priority=2, blast=None, sends=1)]
        with transaction.atomic():
            lock_lanes(takes)
            bound, _ = take(Channel.EMAIL, Rail.MARKETING, 2, new_id(), takes)
            held.set()
            assert not answered.wait(0.3)
        assert len(bound) == 1
        assert waiting.result().startswith("not_cancellable: The send is sending")


@pytest.mark.django_db(transaction=True)
def test_a_claim_steps_over_a_send_that_is_being_cancelled() -> None:
    tenant = make_plain_tenant()
    insert_raw(tenant, 2)
    first = Send.objects.order_by("id")[0].pk
    takes = [Take(tenant=tenant.pk, priority=2, blast=None, sends=2)]

    def claim() -> list[Any]:
        try:
            with transaction.atomic():
                lock_lanes(takes)
                return [send.id for send in take(Channel.EMAIL, Rail.MARKETING, 2, new_id(), takes)[0]]
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        assert cancel_send(tenant.pk, first)
        bound = pool.submit(claim).result(10)
    assert first not in bound
    assert len(bound) == 1
    assert status_of(first) == "cancelled"


@pytest.mark.django_db(transaction=True)
def test_cancelled_or_sent_and_never_both(rig: Rig) -> None:
    """Cancelling against the dispatcher: each send is either cancelled and unknown to the provider, or 409 and sent."""
    tenant = make_plain_tenant()
    pks = [submitted.id for submitted in submit_some(tenant, 300, category="marketing")]

    def cancel_some(part: int) -> set[str]:
        done = set()
        try:
            for pk in pks[part::3]:
                try:
                    assert cancel_send(tenant.pk, pk)
                    done.add(str(pk))
                except Conflict as error:
                    assert error.code == "not_cancellable"  # noqa: PT017
        finally:
            connection.close()
        return done

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(cancel_some, part) for part in range(3)]
        while not all(future.done() for future in futures):
            rig.turn(Rail.MARKETING)
        cancelled = set().union(*(future.result() for future in futures))
    rig.drain(Rail.MARKETING)
    accepted = rig.accepted_ids()
    assert len(accepted) == len(set(accepted))
    assert cancelled.isdisjoint(accepted)
    assert cancelled | set(accepted) == {str(pk) for pk in pks}
    assert {str(pk) for pk in pks if status_of(pk) == "cancelled"} == cancelled
    assert cancelled, "nothing was cancelled: the race was not run"
    assert accepted, "nothing was sent: the race was not run"
