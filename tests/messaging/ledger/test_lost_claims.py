"""A database that was moved to an earlier moment: what was claimed since leaves once, under the key that it had."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_py
from django.db import connection
from django.utils import timezone

from core.security.crypto import SealError
from core.security.ids import new_id
from core.telemetry.redis_client import quick_client
from messaging.clock import run_once
from messaging.domain.lifecycle import BatchState
from messaging.domain.rails import Channel, Rail
from messaging.ledger import claims_log, lost_claims, preparing, rebind, sweeps
from messaging.models import Batch, Send
from messaging.providers.base import Adapter, Answer
from messaging.providers.registry import adapters
from messaging.providers.resend.adapter import ResendAdapter
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
    sweeps.wake()
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
    monkeypatch.setattr(claims_log, "_LOOK_SECONDS", 60)
    waits, wait = threading.Event(), claims_log.wait_for_look
    monkeypatch.setattr(claims_log, "wait_for_look", lambda: (waits.set(), wait()))
    submit_some(make_tenant(), 1)
    assert claims_log.begin_look()
    done: list[object] = []
    worker = threading.Thread(target=lambda: (done.append(rig.turn()), connection.close()))
    worker.start()
    assert waits.wait(60)
    assert Batch.objects.get().state == BatchState.NOT_SENT
    assert (rig.sandbox.stats()["requests_received"], statuses()) == (0, {"queued": 1})
    claims_log.end_look("yet another")
    worker.join(10)

    with monkeypatch.context() as patch:
        patch.setattr(lost_claims, "_missing", lambda _: 1 / 0)
        submit_some(make_tenant(), 1)
        assert _note("yet another")
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


def _note(server: str) -> bool:
    claim = _claim()
    return claims_log.note(server, claim.batch, 1, claim)


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
        assert _note((rig.redis.get(SERVER) or b"").decode())
    assert 300 <= rig.redis.xlen("notif:ledger:claims") <= 600
    monkeypatch.setattr(claims_log, "KEEP_SECONDS", -60)
    _note((rig.redis.get(SERVER) or b"").decode())
    assert rig.redis.xlen("notif:ledger:claims") <= 200
    assert list(claims_log.newest_first()) == []


def test_a_claim_that_could_not_be_noted_is_sent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> bool:
        raise redis_py.ConnectionError

    monkeypatch.setattr(claims_log, "note", away)
    submit_some(make_tenant(), 1)
    rig.turn()
    assert statuses() == {"sent": 1}


# ------------------------------------------------------------------------------------------- between the two commits


def cut_between_the_commits(rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch) -> None:
    """One turn; the ledger is then what it was after the first of its commits."""
    make_ready = preparing.make_ready

    def kept(*args: Any) -> str | None:
        moments.keep()
        return make_ready(*args)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "make_ready", kept)
        rig.turn()
    moments.go_back()


def test_of_a_lost_claim_the_first_commit_may_have_survived(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_some(make_tenant(), 3)
    cut_between_the_commits(rig, moments, monkeypatch)
    before = rig.batch()
    assert (before.state, statuses()) == (BatchState.PREPARING, {"sending": 3})
    rig.lapse_leases()
    beat = run_once(1)
    assert (beat.moved["lost_claims"], beat.moved["release_unprepared"]) == (1, 0)
    again = rig.batch()
    assert (again.pk, again.state, again.error_code) == (before.pk, BatchState.UNKNOWN, "lost_timeline")
    assert preparing.make_ready(again.pk, again.send_ids, bytes(again.digest or b"")) is None
    with connection.cursor() as cursor:
        cursor.execute("SELECT fence FROM core_processed_jobs")
        assert cursor.fetchall() == [(2,)]
    rig.lapse_leases()
    rig.drain()
    assert statuses() == {"sent": 3}
    assert once_each(rig)
    assert set(Send.objects.values_list("mishaps", flat=True)) == {0}


def test_what_the_second_commit_gave_back_waits_for_the_next_claim(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = [submitted.id for submitted in submit_some(make_tenant(), 3)]
    monkeypatch.setattr("messaging.dispatch.preparing._fit", lambda adapter, items: (adapter.encode(items[:2]), 2))
    cut_between_the_commits(rig, moments, monkeypatch)
    monkeypatch.undo()
    assert run_once(1).moved["lost_claims"] == 1
    assert [status_of(pk) for pk in sends] == ["sending", "sending", "queued"]
    rig.drain()
    rig.lapse_leases()
    rig.drain()
    assert statuses() == {"sent": 3}
    assert once_each(rig)
    assert set(Send.objects.values_list("mishaps", flat=True)) == {0}


def test_nothing_is_released_before_the_claims_were_compared(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_some(make_tenant(), 2)
    cut_between_the_commits(rig, moments, monkeypatch)
    rig.lapse_leases()
    assert sweeps.release_unprepared() == 0  # the server has just moved
    rig.redis.set("notif:ledger:looking", "1")
    beat = run_once(1)  # somebody else looks
    assert (beat.moved["lost_claims"], beat.moved["release_unprepared"], beat.failed) == (0, 0, ())
    assert (statuses(), rig.batch().state) == ({"sending": 2}, BatchState.PREPARING)
    rig.redis.delete("notif:ledger:looking")
    run_once(1)
    rig.lapse_leases()
    rig.drain()
    assert once_each(rig)


# ------------------------------------------------------------------------------------- who holds the sends meanwhile


def first(function: Callable[..., Any], before: Callable[[], object]) -> Callable[..., Any]:
    """`function`, and `before` right before its first call."""
    done: list[object] = []

    def wrapped(*args: Any, **options: Any) -> Any:
        if not done:
            done.append(None)
            before()
        return function(*args, **options)

    return wrapped


@pytest.mark.parametrize("others", [0, 2])
def test_a_batch_that_is_being_prepared_ends_when_a_send_is_taken_from_it(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    tenant = make_tenant()
    submit_some(tenant, 3)
    moments.keep()
    rig.turn()
    moments.go_back()
    rest = [submitted.id for submitted in submit_some(tenant, others)] if others else []
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "make_ready", first(preparing.make_ready, run_once))
        assert rig.turn() is None
    assert Batch.objects.values_list("state", flat=True).get() == BatchState.UNKNOWN
    assert [status_of(pk) for pk in rest] == ["queued"] * others
    assert set(Send.objects.values_list("mishaps", flat=True)) == {0}
    rig.drain()
    rig.lapse_leases()
    rig.drain()
    assert statuses() == {"sent": 3 + others}
    assert once_each(rig)


def test_a_batch_that_was_claimed_before_the_comparison_ended_is_refused_its_request(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker stands between the second commit and the note."""
    tenant = make_tenant()
    submit_some(tenant, 3)
    moments.keep()
    rig.turn()
    moments.go_back()
    (rest,) = (submitted.id for submitted in submit_some(tenant, 1))
    with monkeypatch.context() as patch:
        patch.setattr(claims_log, "note", first(claims_log.note, run_once))
        refused = rig.turn()
    assert refused is not None
    assert (refused.state, rig.sandbox.stats()["requests_received"]) == (BatchState.NOT_SENT, 1)
    assert status_of(rest) == "queued"
    rig.drain()
    rig.lapse_leases()
    rig.drain()
    assert statuses() == {"sent": 4}
    assert once_each(rig)


def test_a_batch_that_was_taken_over_before_the_comparison_ended_is_refused_its_request(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the test of an older batch that is open again; only that its worker has it in hand already."""
    later, sent = (submitted.id for submitted in submit_some(make_tenant(), 2))
    rig.sandbox.fault("429", count=1)
    with monkeypatch.context() as patch:
        patch.setattr(ResendAdapter, "send", first(ResendAdapter.send, moments.keep))
        rig.turn()
    Send.objects.filter(pk=later).update(status="scheduled", not_before=timezone.now() + timedelta(hours=1))
    rig.unblock()
    rig.turn()
    assert rig.accepted_ids() == [str(sent)]
    moments.go_back()
    rig.lapse_leases()
    with monkeypatch.context() as patch:
        patch.setattr(claims_log, "note", first(claims_log.note, run_once))
        rig.turn()
    assert rig.accepted_ids() == [str(sent)]
    rig.lapse_leases()
    rig.turn()  # the first one: it is not what it was
    rig.drain()
    assert (status_of(sent), status_of(later)) == ("sent", "ambiguous")
    assert rig.accepted_ids() == [str(sent)]


def test_a_send_that_is_claimed_during_the_comparison_is_taken_from_that_batch_too(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits after the comparison has read which batches hold the sends."""
    submit_some(make_tenant(), 3)
    moments.keep()
    rig.turn()
    moments.go_back()
    compared = threading.Event()
    turns: list[object] = []
    worker = threading.Thread(target=lambda: (turns.append(rig.turn()), connection.close()))

    def claim() -> None:
        worker.start()
        while not Batch.objects.filter(state=BatchState.PREPARING).exists():
            assert worker.is_alive()

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "make_ready", first(preparing.make_ready, lambda: compared.wait(10)))
        patch.setattr(rebind, "_lock", first(rebind._lock, claim))
        assert lost_claims.scan() == 1
        compared.set()
        worker.join(10)
    assert turns == [None]
    assert Batch.objects.values_list("state", flat=True).get() == BatchState.UNKNOWN
    rig.lapse_leases()
    rig.drain()
    assert statuses() == {"sent": 3}
    assert once_each(rig)


def test_a_batch_that_holds_less_than_it_would_request_is_not_made_ready(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever took a send from it, and whatever he forgot."""
    taken = submit_some(make_tenant(), 2)[0].id

    def take() -> None:
        Send.objects.filter(pk=taken).update(batch_id=new_id())

    monkeypatch.setattr(preparing, "make_ready", first(preparing.make_ready, take))
    assert rig.turn() is None
    assert (rig.batch().state, rig.sandbox.stats()["requests_received"]) == (BatchState.PREPARING, 0)


# --------------------------------------------------------------------------------------------- what cannot be bound


def test_a_lost_claim_of_which_nothing_can_be_bound_is_tried_once(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sends were lost, too."""
    moments.keep()
    submit_some(make_tenant(), 2)
    rig.turn()
    server = rig.redis.get(SERVER)
    moments.go_back()
    rig.redis.set(SERVER, server or b"")
    read: list[claims_log.Noted] = []
    claim = claims_log.Noted.claim
    monkeypatch.setattr(claims_log.Noted, "claim", lambda noted: (read.append(noted), claim(noted))[1])
    assert [run_once(0).moved["newest_claims"] for _ in range(3)] == [0, 0, 0]
    assert len(read) == 1
    assert rig.redis.get(SERVER) == server


def test_who_cannot_read_a_lost_claim_does_not_end_the_comparison(
    rig: Rig, moments: Moments, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tenant = make_tenant()
    submit_some(tenant, 2)
    moments.keep()
    rig.turn()
    moments.go_back()

    def unreadable(_: claims_log.Noted) -> claims_log.Claim:
        raise SealError("no such key")

    with monkeypatch.context() as patch:
        patch.setattr(claims_log.Noted, "claim", unreadable)
        beats = [run_once(1) for _ in range(3)]
        assert {beat.moved["lost_claims"] for beat in beats} == {0}
    assert [record.message for record in caplog.records].count("claims_unreadable") == 1
    assert rig.redis.get(SERVER) == b"-"
    assert 0 < rig.redis.ttl("notif:ledger:looking") <= 10
    rig.redis.delete("notif:ledger:looking")  # as it runs out; then one looks that has the key
    assert run_once(1).moved["lost_claims"] == 1
    rig.lapse_leases()
    rig.drain()
    assert statuses() == {"sent": 2}
    assert once_each(rig)


def test_a_send_that_is_bound_again_waits_for_no_sender_any_more(rig: Rig, moments: Moments) -> None:
    submit_some(make_tenant(), 1)
    Send.objects.update(status="scheduled", held_by=7)
    moments.keep()
    Send.objects.update(status="queued", held_by=None)
    rig.turn()
    moments.go_back()
    assert lost_claims.scan() == 1
    assert Send.objects.values_list("status", "held_by").get() == ("sending", None)
