"""One send that ends its worker, or fails in a way that nobody foresaw, costs itself: neighbours and other tenants go on."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError, connection
from django.utils import timezone

from core.models import DeadLetter, ProcessedJob, Tenant
from devtools.processes import Process, Supervisor
from devtools.stack import url_of
from messaging.clock import run_once
from messaging.dispatch import preparing as dispatch_preparing
from messaging.dispatch import turn
from messaging.dispatch.forming import form_batch
from messaging.dispatch.scheduler import Grant, memory_of, search
from messaging.domain.rails import Channel, Rail
from messaging.ledger import preparing, sweeps
from messaging.models import Batch, Content, Send
from messaging.providers.registry import adapters
from tests.factories import make_tenant, status_of, statuses, submit_some
from tests.messaging.dispatch.suspect_worker import POISON
from tests.rig import Rig, prepare


def _line(rail: Rail = Rail.TRANSACTIONAL) -> turn.Line:
    return turn.Line(adapters()[Channel.EMAIL], turn.governor_of("resend"), Channel.EMAIL, rail)


def _grant() -> Grant:
    line = _line()
    found = search(line.adapter, line.governor, line.channel, line.rail, memory_of("resend", line.channel, line.rail))
    assert isinstance(found, Grant)
    return found


def _claimed_by_one_that_dies() -> None:
    """Claimed and committed; its worker vanishes before the batch is ready, and the lease runs out."""
    grant = _grant()
    assert form_batch(adapters()[Channel.EMAIL], Channel.EMAIL, Rail.TRANSACTIONAL, grant.batch, grant.takes).formed


def _wake() -> None:
    Send.objects.filter(status="scheduled").update(not_before=timezone.now() - timedelta(seconds=1))
    sweeps.wake()


# ------------------------------------------------------------------------------------------------ real workers


class Supervised:
    """One worker at a time, started again at once when it dies, as a supervisor does."""

    def __init__(self, supervisor: Supervisor, where: str) -> None:
        self._supervisor, self._where = supervisor, where
        self.deaths = -1
        self.process: Process | None = None

    def keep(self) -> None:
        if self.process is None or not self.process.running:
            self.deaths += 1
            self.process = self._supervisor.start(
                f"worker-{self.deaths}",
                [sys.executable, "-m", "tests.messaging.dispatch.suspect_worker", self._where],
                ready="ready",
            )


@pytest.fixture
def supervised(rig: Rig, tmp_path: Path) -> Iterator[Callable[[str], Supervised]]:
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATABASE_URL": url_of(connection.settings_dict),
        "REDIS_URL": settings.REDIS_URL,
        "RESEND_BASE_URL": rig.sandbox.url,
    }
    with Supervisor(tmp_path, env) as supervisor:
        yield lambda where: Supervised(supervisor, where)


def _until(
    worker: Supervised, true: Callable[[], bool], seconds: float = 90, each: Callable[[], Any] = run_once
) -> None:
    """The clock beats, the supervisor looks, until it is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, (statuses(), worker.deaths)
        each()
        worker.keep()
        time.sleep(0.05)


@pytest.mark.process
def test_a_send_that_kills_its_worker_is_a_dead_letter_after_three_deaths_and_its_neighbours_leave(
    rig: Rig, supervised: Callable[[str], Supervised]
) -> None:
    tenant, other = make_tenant(), make_tenant()
    submit_some(tenant, 4)
    (poison,) = submit_some(tenant, 1, to=POISON)
    submit_some(tenant, 5)
    submit_some(other, 25)
    worker = supervised("open")
    _until(worker, lambda: statuses() == {"sent": 34, "failed": 1})
    assert worker.deaths == 3
    assert (status_of(poison.id), DeadLetter.objects.get().reason) == ("failed", "kills_worker")
    assert (len(rig.accepted_ids()), rig.sandbox.stats()["doubles"]) == (34, 0)
    assert (Batch.objects.exclude(state="accepted").count(), ProcessedJob.objects.filter(done_at=None).count()) == (
        0,
        0,
    )
    # Whoever comes while it is suspected does not notice: by the second death at the latest everybody else is gone.
    assert max(len(batch.send_ids) for batch in rig.batches()) > 1


@pytest.mark.process
def test_a_batch_that_kills_every_worker_that_repeats_it_is_unresolved_after_the_third(
    rig: Rig, supervised: Callable[[str], Supervised]
) -> None:
    """It may have been sent, and cannot be divided: repeated for 23 hours, it would end a worker every half a minute."""
    submit_some(make_tenant(), 2)
    submit_some(make_tenant(), 1, to=POISON)
    worker = supervised("record")

    def beat() -> None:
        run_once()
        if (
            Batch.objects.filter(state__in=["claimed", "unknown"]).exists()
            and worker.process
            and not worker.process.running
        ):
            rig.lapse_leases()

    _until(worker, lambda: statuses() == {"ambiguous": 3}, each=beat)
    assert (worker.deaths, rig.batch().error_code) == (3, "kills_worker")
    assert (len(rig.accepted_ids()), rig.sandbox.stats()["doubles"]) == (3, 0)


# ------------------------------------------------------------------------------------------------ step by step


def test_the_first_death_makes_all_that_was_in_hand_suspects_and_they_leave_at_once(rig: Rig) -> None:
    submit_some(make_tenant(), 10)
    _claimed_by_one_that_dies()
    assert (statuses(), rig.batch().state, rig.batch().digest) == ({"sending": 10}, "preparing", None)
    rig.drain()
    assert statuses() == {"sending": 10}  # its lease has not run out
    rig.lapse_leases()
    assert preparing.release() == preparing.Released(1, ())
    assert (statuses(), set(Send.objects.values_list("mishaps", flat=True))) == ({"queued": 10}, {1})
    assert (Batch.objects.count(), ProcessedJob.objects.count()) == (0, 0)
    rig.drain()
    assert (statuses(), set(Send.objects.values_list("mishaps", flat=True))) == ({"sent": 10}, {0})
    assert len(rig.batches()) == 1


def test_suspects_never_share_a_batch_with_others(rig: Rig) -> None:
    suspects = submit_some(make_tenant(), 3)
    Send.objects.filter(pk__in=[s.id for s in suspects]).update(mishaps=1)
    Send.objects.filter(pk=suspects[0].id).update(mishaps=2)
    submit_some(make_tenant(), 20)
    rig.drain()
    assert statuses() == {"sent": 23}
    assert sorted(len(batch.send_ids) for batch in rig.batches()) == [1, 2, 20]


def test_the_second_death_names_the_one_in_hand_and_the_third_ends_it(rig: Rig) -> None:
    sends = submit_some(make_tenant(), 5)
    Send.objects.update(mishaps=1)
    _claimed_by_one_that_dies()
    assert preparing.mark(rig.batch().pk, sends[2].id)
    rig.lapse_leases()
    preparing.release()
    assert dict(Send.objects.values_list("id", "mishaps"))[sends[2].id] == 2
    Send.objects.exclude(pk=sends[2].id).update(status="cancelled")
    _claimed_by_one_that_dies()
    rig.lapse_leases()
    assert preparing.release().killers == (sends[2].id,)
    assert (status_of(sends[2].id), DeadLetter.objects.get().reason) == ("failed", "kills_worker")
    assert run_once().failed == ()


def test_a_worker_that_was_only_slow_changes_nothing_and_clears_its_sends(rig: Rig) -> None:
    submit_some(make_tenant(), 5)
    line, grant = _line(), _grant()
    work, _ = turn.take_work(line, grant)
    assert work is not None
    rig.lapse_leases()
    preparing.release()
    assert turn.make_ready(line, grant, work) is None
    assert set(Send.objects.values_list("mishaps", flat=True)) == {1}
    assert rig.governor.spent() == 0
    rig.drain()
    assert (statuses(), rig.sandbox.stats()["requests_received"]) == ({"sent": 5}, 1)


def test_a_database_that_was_away_makes_no_suspects(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker lives, and says so once they have been accused."""
    submit_some(make_tenant(), 5)
    real, down = preparing.make_ready, [True]

    def make_ready(*args: Any) -> Any:
        if down:
            down.pop()
            raise OperationalError("gone")
        return real(*args)

    monkeypatch.setattr(preparing, "make_ready", make_ready)
    with pytest.raises(OperationalError):
        rig.turn()
    rig.turn()  # too early: the clock has not found it yet
    rig.lapse_leases()
    preparing.release()
    assert set(Send.objects.values_list("mishaps", flat=True)) == {1}
    now = time.monotonic()
    monkeypatch.setattr(turn.time, "monotonic", lambda: now + 10)
    turn._clear_suspicion(_line())
    assert set(Send.objects.values_list("mishaps", flat=True)) == {0}
    assert rig.governor.spent() == 0


def test_a_lease_is_renewed_while_a_slow_machine_renders(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    submit_some(make_tenant(), 3)
    monkeypatch.setattr(dispatch_preparing, "RENEW_SECONDS", -1.0)
    marks: list[Any] = []
    real = preparing.mark
    monkeypatch.setattr(preparing, "mark", lambda *args: (marks.append(args[1]), real(*args))[1])
    rig.drain()
    assert (statuses(), marks) == ({"sent": 3}, [None] * 3)


def test_a_cancelled_blast_takes_nothing_back_from_a_dead_worker(rig: Rig) -> None:
    submit_some(make_tenant(), 2, expires_at=timezone.now() + timedelta(hours=1))
    _claimed_by_one_that_dies()
    Send.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    rig.lapse_leases()
    preparing.release()
    assert statuses() == {"expired": 2}


# ------------------------------------------------------------------------------------------------ what raises


def test_a_send_whose_content_is_missing_fails_alone(rig: Rig) -> None:
    tenant = make_tenant()
    (broken,) = submit_some(tenant, 1, text="another {{ code }}")
    submit_some(tenant, 5)
    submit_some(make_tenant(), 5)
    content = Send.objects.get(pk=broken.id).content_id
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        Content.objects.filter(pk=content)._raw_delete("default")
        cursor.execute("SET session_replication_role = DEFAULT")
    rig.drain()
    assert statuses() == {"sent": 10, "failed": 1}
    assert DeadLetter.objects.get().reason == "content_missing"


def test_any_exception_while_a_send_is_prepared_costs_that_send(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice it waits (a bug may be gone a moment later), then it is a dead letter. Neighbours leave at once."""
    sends = submit_some(make_tenant(), 10)
    real = dispatch_preparing.render

    def render(send: Any, *args: Any) -> Any:
        if send.id == sends[4].id:
            raise ZeroDivisionError("nobody foresaw this")
        return real(send, *args)

    monkeypatch.setattr(dispatch_preparing, "render", render)
    rig.drain()
    assert (statuses(), len(rig.batches()[0].send_ids)) == ({"sent": 9, "scheduled": 1}, 9)
    for _ in range(2):
        _wake()
        rig.drain()
    assert (statuses(), DeadLetter.objects.get().reason) == ({"sent": 9, "failed": 1}, "cannot_be_prepared")
    assert "foresaw" not in DeadLetter.objects.get().detail


def test_an_item_that_cannot_be_encoded_costs_that_send(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    sends = submit_some(make_tenant(), 10)
    adapter = adapters()[Channel.EMAIL]
    real = adapter.encode

    def encode(items: Any) -> bytes:
        if any(item.send_id == sends[4].id for item in items):
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates not allowed")
        return real(items)

    monkeypatch.setattr(adapter, "encode", encode)
    rig.drain()
    assert (statuses(), status_of(sends[4].id)) == ({"sent": 9, "scheduled": 1}, "scheduled")


def test_a_row_sealed_with_a_key_that_nobody_has_is_held_by_itself_and_ends_after_an_hour(rig: Rig) -> None:
    tenant: Tenant = make_tenant()
    (lost,) = submit_some(tenant, 1)
    Send.objects.filter(pk=lost.id).update(sealed=b"\x01\x03old" + bytes(40))
    codes = submit_some(tenant, 5)
    rig.turn()
    assert ([status_of(s.id) for s in codes], status_of(lost.id)) == (["sent"] * 5, "scheduled")
    Send.objects.filter(pk=lost.id).update(held_since=timezone.now() - timedelta(minutes=59))
    _wake()
    rig.drain()
    waits = Send.objects.get(pk=lost.id).not_before - timezone.now()
    assert timedelta(minutes=58) < waits < timedelta(minutes=60)  # as long again as it has waited
    Send.objects.filter(pk=lost.id).update(held_since=timezone.now() - timedelta(minutes=61))
    _wake()
    rig.drain()
    assert (status_of(lost.id), DeadLetter.objects.get().reason) == ("failed", "unknown_encryption_key")


def test_preparing_is_not_part_of_the_claims_transaction(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What dies of a template leaves a trace: the claim is committed before the first one is opened."""
    submit_some(make_tenant(), 3)
    seen: list[tuple[bool, str]] = []
    real = dispatch_preparing.render

    def render(*args: Any) -> Any:
        seen.append((connection.in_atomic_block, rig.batch().state))
        return real(*args)

    monkeypatch.setattr(dispatch_preparing, "render", render)
    assert prepare(_line(), _grant()) is not None
    assert set(seen) == {(False, "preparing")}
