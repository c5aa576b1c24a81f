"""A database that was moved to an earlier moment: what was claimed since leaves once, under the key that it had."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py
from django.db import connection
from django.utils import timezone

from core.ids import new_id
from core.redis_client import quick_client
from messaging.clock import run_once, steps
from messaging.ledger import claims_log, lost_claims
from messaging.lifecycle import BatchState
from messaging.models import Batch, Send
from messaging.providers.base import Adapter, Answer
from messaging.providers.registry import adapters
from messaging.providers.resend import ResendAdapter
from messaging.rails import Channel, Rail
from tests.factories import make_tenant, request, status_of, statuses, submit_some
from tests.messaging.providers.confirmations import AtMostOnce, Verifiable
from tests.rig import Rig

_TABLES = ("messaging_sends", "messaging_batches", "core_processed_jobs")
SERVER = "notif:ledger:server"


class Moments:
    """Keeps the ledger as it is at a moment, and moves it back there, onto another server."""

    def keep(self) -> None:
        with connection.cursor() as cursor:
            for table in _TABLES:
                cursor.execute(f"DROP TABLE IF EXISTS kept_{table}")
                cursor.execute(f"CREATE TEMP TABLE kept_{table} AS TABLE {table}")

    def go_back(self) -> None:
        with connection.cursor() as cursor:
            for table in _TABLES:
                cursor.execute(f"DELETE FROM {table}")
                cursor.execute(f"INSERT INTO {table} SELECT * FROM kept_{table}")
        quick_client().set(SERVER, "the one before")

    def drop(self) -> None:
        with connection.cursor() as cursor:
            for table in _TABLES:
                cursor.execute(f"DROP TABLE IF EXISTS kept_{table}")


@pytest.fixture
def moments(rig: Rig) -> Iterator[Moments]:
    moments = Moments()
    yield moments
    moments.drop()


def use(rig: Rig, kind: type[Adapter]) -> None:
    adapters()[Channel.EMAIL] = kind(api_key="re_sandbox", base_url=rig.sandbox.url)  # type: ignore[call-arg]


def once_each(rig: Rig) -> bool:
    taken = sorted(rig.accepted_ids())
    return taken == sorted(str(pk) for pk in Send.objects.values_list("pk", flat=True))


@pytest.mark.parametrize("status", ["queued", "scheduled"])
def test_what_was_sent_and_lost_is_not_sent_again(rig: Rig, moments: Moments, status: str) -> None:
    submit_some(make_tenant(), 3)
    Send.objects.update(status=status, not_before=timezone.now() - timedelta(seconds=1))
    moments.keep()
    steps.wake()
    rig.turn()
    before = rig.batch()
    moments.go_back()
    assert (statuses(), Batch.objects.count()) == ({status: 3}, 0)

    assert run_once().moved["lost_claims"] == 1
    again = rig.batch()
    same = ("id", "provider", "rail", "send_ids", "digest", "idempotency_key", "rendered_at")
    assert [getattr(again, name) for name in same] == [getattr(before, name) for name in same]
    assert (again.state, again.error_code) == (BatchState.UNKNOWN, "lost_timeline")
    assert abs(again.created_at - before.created_at) < timedelta(seconds=5)
    assert (statuses(), rig.turn()) == ({"sending": 3}, None)  # its lease lasts: its worker may still answer
    rig.lapse_leases()
    rig.drain()
    assert statuses() == {"sent": 3}
    assert once_each(rig)
    assert rig.sandbox.stats()["doubles"] == 0
    assert run_once().moved["lost_claims"] == 0


def test_workers_find_it_out_themselves_before_they_send_anything(rig: Rig, moments: Moments) -> None:
    """The clock is away; codes that were submitted since go out, too."""
    tenant = make_tenant()
    submit_some(tenant, 3)
    moments.keep()
    rig.turn()
    moments.go_back()
    submit_some(tenant, 2)
    requests = rig.sandbox.stats()["requests_received"]

    refused = rig.turn()
    assert refused is not None
    assert (refused.state, refused.waiting) == (BatchState.NOT_SENT, True)
    assert rig.sandbox.stats()["requests_received"] == requests == rig.governor.spent()
    assert statuses() == {"sending": 3, "queued": 2}
    rig.drain()
    assert statuses() == {"sending": 3, "sent": 2}
    rig.lapse_leases()
    rig.drain()
    assert statuses() == {"sent": 5}
    assert once_each(rig)


def test_nothing_is_sent_while_somebody_else_looks_or_has_failed_to(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_some(make_tenant(), 1)
    assert claims_log.begin_look()
    done: list[object] = []
    worker = threading.Thread(target=lambda: (done.append(rig.turn()), connection.close()))
    worker.start()
    while not Batch.objects.filter(state=BatchState.NOT_SENT).exists():
        assert worker.is_alive()
    assert (rig.sandbox.stats()["requests_received"], statuses()) == (0, {"queued": 1})
    claims_log.end_look("yet another")
    worker.join(10)

    with monkeypatch.context() as patch:
        patch.setattr(lost_claims, "_missing", lambda _: 1 / 0)
        submit_some(make_tenant(), 1)
        assert claims_log.note("yet another", _claim())
        with suppress(ZeroDivisionError):
            rig.turn()
    assert rig.sandbox.stats()["requests_received"] == 0
    rig.redis.delete("notif:ledger:looking")  # as it runs out
    rig.drain()
    assert statuses() == {"sent": 2}


def _claim() -> claims_log.Claim:
    pk = new_id()
    return claims_log.Claim(
        pk, "resend", Channel.EMAIL, Rail.TRANSACTIONAL, "key", b"\x00" * 32, timezone.now(), [pk.bytes]
    )


def test_at_a_provider_that_cannot_be_asked_it_is_ambiguous_and_says_why(rig: Rig, moments: Moments) -> None:
    use(rig, AtMostOnce)
    submit_some(make_tenant(), 2)
    moments.keep()
    rig.turn()
    moments.go_back()
    run_once()
    rig.lapse_leases()
    rig.drain()
    assert statuses(error_code="lost_timeline") == {"ambiguous": 2}
    assert (rig.batch().state, rig.batch().error_code) == (BatchState.AMBIGUOUS, "lost_timeline")
    assert once_each(rig)


def test_a_provider_that_can_be_asked_is_asked(rig: Rig, moments: Moments) -> None:
    use(rig, Verifiable)
    submit_some(make_tenant(), 2)
    moments.keep()
    rig.turn()
    moments.go_back()
    run_once()
    rig.lapse_leases()
    rig.drain()
    assert statuses() == {"sent": 2}
    assert once_each(rig)


def test_a_send_belongs_to_the_newest_of_its_claims(rig: Rig, moments: Moments) -> None:
    submit_some(make_tenant(), 3)
    moments.keep()
    rig.sandbox.fault("429", count=1)
    rig.turn()
    rig.unblock()
    rig.turn()
    assert statuses() == {"sent": 3}
    accepted = Batch.objects.get(state=BatchState.ACCEPTED).pk
    moments.go_back()
    run_once()
    assert rig.batch().pk == accepted
    rig.lapse_leases()
    rig.drain()
    assert statuses() == {"sent": 3}
    assert once_each(rig)


def test_an_older_batch_that_had_ended_and_is_open_again_does_not_send_them(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch's 429 is lost, and with it that its sends waited again: one of them has left in a second batch."""
    later, sent = (submitted.id for submitted in submit_some(make_tenant(), 2))
    send = ResendAdapter.send

    def kept(adapter: ResendAdapter, body: bytes, **options: Any) -> Answer:
        moments.keep()
        return send(adapter, body, **options)

    rig.sandbox.fault("429", count=1)
    with monkeypatch.context() as patch:
        patch.setattr(ResendAdapter, "send", kept)
        rig.turn()
    refused = rig.batch().pk
    Send.objects.filter(pk=later).update(status="scheduled", not_before=timezone.now() + timedelta(hours=1))
    rig.unblock()
    rig.turn()
    assert rig.accepted_ids() == [str(sent)]
    moments.go_back()
    assert statuses(batch_id=refused) == {"sending": 2}

    run_once()
    rig.lapse_leases()
    rig.turn()  # the first one: it is not what it was
    rig.drain()
    assert (status_of(sent), status_of(later)) == ("sent", "ambiguous")
    assert rig.accepted_ids() == [str(sent)]


def test_a_send_that_was_lost_too_leaves_the_rest_of_its_batch_ambiguous(rig: Rig, moments: Moments) -> None:
    tenant = make_tenant()
    submit_some(tenant, 2)
    moments.keep()
    submit_some(tenant, 1)
    rig.turn()
    moments.go_back()
    run_once()
    rig.lapse_leases()
    rig.drain()
    assert statuses() == {"ambiguous": 2}
    assert len(rig.accepted_ids()) == len(set(rig.accepted_ids())) == 3


def test_the_newest_claims_are_looked_for_on_the_same_server_too(rig: Rig, moments: Moments) -> None:
    submit_some(make_tenant(), 2)
    moments.keep()
    rig.turn()
    server = rig.redis.get(SERVER)
    moments.go_back()
    rig.redis.set(SERVER, server or b"")
    assert run_once(1).moved["lost_claims"] == 0
    assert run_once(0).moved["newest_claims"] == 1
    rig.lapse_leases()
    rig.drain()
    assert once_each(rig)


def test_with_nothing_lost_a_new_server_costs_one_look_and_no_claim_is_read(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_some(make_tenant(), 2)
    rig.turn()
    server = rig.redis.get(SERVER)
    rig.redis.set(SERVER, "the one before")
    monkeypatch.setattr(claims_log.Noted, "claim", lambda _: 1 / 0)
    assert run_once().moved["lost_claims"] == 0
    assert rig.redis.get(SERVER) == server


def test_what_is_kept_is_bounded_and_tells_nobody_anything(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_log, "KEEP_CLAIMS", 300)
    tenant = make_tenant()
    submit_some(tenant, 1)
    rig.turn()
    (entry,) = rig.redis.xrange("notif:ledger:claims")
    said = b"".join(entry[1].values())
    batch = rig.batch()
    assert bytes(batch.digest) not in said
    assert bytes(batch.digest).hex().encode() not in said
    assert request(tenant)["to"].encode() not in said
    for _ in range(1000):
        assert claims_log.note((rig.redis.get(SERVER) or b"").decode(), _claim())
    assert 300 <= rig.redis.xlen("notif:ledger:claims") <= 600
    monkeypatch.setattr(claims_log, "KEEP_SECONDS", -60)
    claims_log.note((rig.redis.get(SERVER) or b"").decode(), _claim())
    assert rig.redis.xlen("notif:ledger:claims") <= 200
    assert list(claims_log.newest_first()) == []


def test_a_claim_that_could_not_be_noted_is_sent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> bool:
        raise redis_py.ConnectionError

    monkeypatch.setattr(claims_log, "note", away)
    submit_some(make_tenant(), 1)
    rig.turn()
    assert statuses() == {"sent": 1}
