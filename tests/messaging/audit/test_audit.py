"""The audit: a ledger that was used adds up; each relation that is broken by hand is named."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.db import connection, connections
from django.utils import timezone
from redis import Redis

from core.db.cursor import ledger_cursor
from core.models import DeadLetter, ProcessedJob, Tenant
from core.security.ids import new_id
from messaging.audit import Difference, Report, audit, provider_log, run
from messaging.audit.provider_log import LogError
from messaging.audit.report import MEANINGS, NOTICES
from messaging.clock import run_once
from messaging.domain.rails import Rail
from messaging.metrics.scrape import from_redis
from messaging.models import Batch, Blast, BlastCount, Redrive, Send
from messaging.planner import plan_blast
from messaging.services.redrive import redrive
from messaging.services.submit import submit_many
from messaging.telemetry import audits
from messaging.telemetry.audits import last_audit
from tests.factories import make_tenant, request, status_of, submit_some
from tests.rig import Rig

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOMENT", 0.0)


@pytest.fixture
def used(rig: Rig) -> Rig:
    """A ledger in which everything has happened: sent, failed by name, redriven, ambiguous, unknown, rate limited, waiting."""
    tenant, other = make_tenant("a"), make_tenant("b")
    submit_some(tenant, 1, to="somebody@example.com")
    submit_some(other, 5)
    rig.turn()
    failed = Send.objects.get(status="failed")
    redrive(send_ids=[failed.pk], by="ada")
    rig.drain()  # fails again
    for _ in range(2):
        rig.sandbox.fault("too_few_ids", count=1, missing=1)
        submit_some(tenant, 1) if not Send.objects.filter(status="sending").exists() else None
        rig.turn()
        rig.lapse_leases()
    rig.sandbox.fault("429", count=1, retry_after=1)
    submit_some(tenant, 2)
    rig.turn()
    rig.unblock()
    rig.drain()
    plan = plan_blast(
        tenant,
        recipients=[{"to": f"u{i}@recipients.org"} for i in range(150)],
        from_="x@a.org",
        subject="s",
        text="t",
    )
    rig.drain(Rail.MARKETING)
    run_once()
    assert Blast.objects.get(pk=plan.blast_id).state == "finished"
    rig.sandbox.fault("too_few_ids", count=1, missing=1)
    submit_some(other, 2)
    rig.turn()  # unknown: bound
    submit_some(other, 3)
    submit_some(tenant, 1, not_before=timezone.now() + timedelta(days=1))
    assert {
        s: Send.objects.filter(status=s).count() for s in ("failed", "ambiguous", "sending", "queued", "scheduled")
    } == {
        "failed": 1,
        "ambiguous": 1,
        "sending": 2,
        "queued": 3,
        "scheduled": 1,
    }
    return rig


def _log(rig: Rig) -> list[str]:
    return [json.dumps({"send": line["tags"].get("send_id"), "id": line["id"]}) for line in rig.sandbox.log()]


def _found(**arguments: Any) -> dict[str, int]:
    return audit(**arguments).found


def test_a_ledger_that_was_used_adds_up_also_with_the_provider_s_log(used: Rig) -> None:
    report = audit(log=_log(used))
    # The ambiguous one and the two that are unknown: the provider has them.
    assert report.found == {"accepted_unresolved": 3}
    assert (report.differences, report.notices) == (0, 3)
    assert report.checked == {
        "jobs": 1,
        "batches": Batch.objects.count(),
        "sends": Send.objects.count(),
        "dead letters": 1,
        "blasts": 1,
        "lines of the provider's log": len(_log(used)),
    }


def _one(**where: Any) -> Send:
    found = Send.objects.filter(**where).order_by("id").first()
    assert found is not None
    return found


def _set(send: Send, **values: Any) -> None:
    assert Send.objects.filter(pk=send.pk).update(**values) == 1


def _batch(**where: Any) -> Batch:
    found = Batch.objects.filter(**where).order_by("id").first()
    assert found is not None
    return found


def _sending_without_batch() -> None:
    _set(_one(status="queued"), status="sending", batch_id=new_id())


def _ambiguous_in_an_accepted_batch() -> None:
    _set(_one(status="sent"), status="ambiguous")


def _sent_by_nobody() -> None:
    _set(_one(status="queued"), status="sent", accepted_at=timezone.now(), provider_id="x")


def _sent_without_an_id() -> None:
    _set(_one(status="sent"), provider_id=None)


def _sent_by_another_batch() -> None:
    mine, other = _batch(state="accepted"), _batch(state="ambiguous")
    _set(_one(batch_id=mine.pk), batch_id=other.pk)


def _failed_without_letter() -> None:
    DeadLetter.objects.all().delete()


def _open_in_a_finished_blast() -> None:
    _set(_one(blast__isnull=False), status="queued", batch_id=None, accepted_at=None)


def _another_tenant_s_send() -> None:
    send = _one(status="scheduled")
    _set(send, tenant=Tenant.objects.exclude(pk=send.tenant_id).first())


def _open_batch_loses_a_send() -> None:
    _set(_one(status="sending"), status="cancelled")


def _accepted_batch_with_a_queued_send() -> None:
    _set(_one(status="sent"), status="queued", accepted_at=None)


def _accepted_batch_with_a_failed_send() -> None:
    send = _one(status="sent", batch_id=_batch(state="accepted").pk)
    _set(send, status="failed", accepted_at=None)
    DeadLetter.objects.create(channel="email", send_id=send.pk, tenant=send.tenant, reason="x")


def _send_moved_to_another_batch_without_a_redrive() -> None:
    Redrive.objects.all().delete()


def _ended_batch_with_a_sent_send() -> None:
    limited = _batch(state="rate_limited")
    Send.objects.filter(pk=limited.send_ids[0]).update(batch_id=limited.pk)


def _ambiguous_batch_lets_go() -> None:
    _set(_one(status="ambiguous"), status="queued")


def _a_send_twice() -> None:
    batch = _batch(state="accepted")
    Batch.objects.filter(pk=batch.pk).update(send_ids=[*batch.send_ids, batch.send_ids[0]])


def _a_marketing_send_in_a_transactional_batch() -> None:
    batch = _batch(rail="transactional", state="accepted_in_part")
    _set(_one(batch_id=batch.pk), category="marketing", rail="marketing", priority=2)


def _open_batch_without_job() -> None:
    ProcessedJob.objects.filter(done_at=None).delete()


def _open_batch_with_a_done_job() -> None:
    ProcessedJob.objects.filter(done_at=None).update(done_at=timezone.now())


def _ended_batch_with_open_job() -> None:
    ProcessedJob.objects.filter(pk=f"batch:{_batch(state='accepted').pk}").update(done_at=None)


def _ended_batch_without_job() -> None:
    ProcessedJob.objects.filter(pk=f"batch:{_batch(state='accepted').pk}").delete()


def _job_of_no_batch() -> None:
    ProcessedJob.objects.create(job_key=f"batch:{new_id()}", lease_until=timezone.now())


def _long_lapsed() -> None:
    ProcessedJob.objects.create(job_key="import:1", lease_until=timezone.now() - timedelta(hours=1))


def _finished_without_end() -> None:
    Blast.objects.update(finished_at=None)


def _running_with_an_end() -> None:
    Blast.objects.update(state="running")


def _count_off_by_one() -> None:
    found = BlastCount.objects.filter(status="sent").first()
    assert found is not None
    BlastCount.objects.filter(blast_id=found.blast_id, status="sent").update(n=found.n + 1)


def _a_send_deleted() -> None:
    Send.objects.filter(pk=_one(blast__isnull=False).pk).delete()


def _letter_of_a_send_that_was_sent() -> None:
    send = _one(status="sent")
    DeadLetter.objects.create(channel="email", send_id=send.pk, tenant=send.tenant, reason="x")


def _letter_to_another_tenant() -> None:
    letter = DeadLetter.objects.get()
    DeadLetter.objects.update(tenant=Tenant.objects.exclude(pk=letter.tenant_id).first())


BREAKS: list[tuple[Callable[[], None], str]] = [
    (_sending_without_batch, "sending_outside_open_batch"),
    (_ambiguous_in_an_accepted_batch, "ambiguous_outside_ambiguous_batch"),
    (_sent_by_nobody, "sent_without_acceptance"),
    (_sent_without_an_id, "sent_without_acceptance"),
    (_sent_by_another_batch, "sent_without_acceptance"),
    (_failed_without_letter, "failed_without_dead_letter"),
    (_open_in_a_finished_blast, "open_in_finished_blast"),
    (_another_tenant_s_send, "mixed_tenants"),
    (_open_batch_loses_a_send, "open_batch_lost_sends"),
    (_accepted_batch_with_a_queued_send, "accepted_batch_unsent"),
    (_accepted_batch_with_a_failed_send, "accepted_batch_unsent"),
    (_send_moved_to_another_batch_without_a_redrive, "accepted_batch_unsent"),
    (_ended_batch_with_a_sent_send, "ended_batch_holds_sends"),
    (_ambiguous_batch_lets_go, "ambiguous_batch_let_go"),
    (_a_send_twice, "send_twice_in_batch"),
    (_a_marketing_send_in_a_transactional_batch, "mixed_rails"),
    (_open_batch_without_job, "batch_without_open_job"),
    (_open_batch_with_a_done_job, "batch_without_open_job"),
    (_ended_batch_with_open_job, "ended_batch_with_open_job"),
    (_ended_batch_with_open_job, "job_without_open_batch"),
    (_ended_batch_without_job, "ended_batch_with_open_job"),
    (_job_of_no_batch, "job_without_open_batch"),
    (_long_lapsed, "lease_long_past"),
    (_finished_without_end, "finished_state"),
    (_running_with_an_end, "finished_state"),
    (_count_off_by_one, "counts"),
    (_a_send_deleted, "counts"),
    (_letter_of_a_send_that_was_sent, "dead_letter_without_failure"),
    (_letter_to_another_tenant, "dead_letter_without_failure"),
]


@pytest.mark.parametrize(("break_it", "what"), BREAKS, ids=lambda value: getattr(value, "__name__", value))
def test_each_relation_that_is_broken_is_named(used: Rig, break_it: Callable[[], None], what: str) -> None:
    break_it()
    report = audit()
    assert report.found.get(what) == 1, report.found
    assert bool(report.differences) is (what not in NOTICES)
    assert next(e.id for e in report.examples if e.what == what)


def test_every_word_is_tried() -> None:
    assert {what for _, what in BREAKS} | {what for *_, what in LOGS} == set(MEANINGS)


# ---------------------------------------------------------------------------------------------------- the provider's log

Lines = list[str]


def _entry(send: object, pk: str = "x") -> str:
    return json.dumps({"send": None if send is None else str(send), "id": pk})


def _sent_id() -> str:
    return str(_one(status="sent").pk)


LOGS: list[tuple[Callable[[Lines], Lines], str]] = [
    (lambda log: [*log, _entry(new_id())], "accepted_unknown_send"),
    (lambda log: [*log, _entry(_one(status="queued").pk)], "accepted_not_sent"),
    (lambda log: [*log, _entry(_one(status="failed").pk)], "accepted_not_sent"),
    (lambda log: [line for line in log if _sent_id() not in line] + [_entry(_sent_id())], "accepted_other_id"),
    (lambda log: [line for line in log if _sent_id() not in line], "sent_not_in_log"),
    (lambda log: [*log, _entry(None)], "log_without_send"),
    (lambda log: log, "accepted_unresolved"),
    (lambda log: [*log, _entry(_one(status="ambiguous").pk)], "accepted_twice"),
]


@pytest.mark.parametrize(("change", "what"), LOGS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_difference_from_the_provider_s_log_is_named(
    used: Rig, change: Callable[[Lines], Lines], what: str
) -> None:
    report = audit(log=change(_log(used)))
    assert what in report.found
    expected = {what} if what not in NOTICES else set()
    assert {found for found in report.found if found not in NOTICES} == expected


def test_a_double_that_somebody_accepted_is_no_difference(used: Rig) -> None:
    send = _one(status="ambiguous")
    redrive(send_ids=[send.pk], accept_duplicates_by="ada")
    used.drain()
    assert status_of(send.pk) == "sent"
    report = audit(log=_log(used))
    assert report.differences == 0, report.found


def test_of_a_log_with_times_only_what_lies_within_them_is_looked_for(used: Rig) -> None:
    now = time.time()
    entry = {"send": str(_one(status="sent").pk), "id": _one(status="sent").provider_id}
    inside = [json.dumps(entry | {"at": now + seconds}) for seconds in (-60, 60)]
    outside = [json.dumps(entry | {"at": now + seconds}) for seconds in (60, 120)]
    sent = Send.objects.filter(status="sent").count()
    assert _found(log=inside).get("sent_not_in_log") == sent - 1
    assert "sent_not_in_log" not in _found(log=outside)


@pytest.mark.parametrize(
    "line", ["ada@home.org", "[]", "{}", '{"send": "ada@home.org", "id": "x"}', '{"id": 1, "at": "x"}']
)
def test_a_log_that_cannot_be_read_is_told_by_its_line_and_not_quoted(used: Rig, line: str) -> None:
    with pytest.raises(LogError, match="Line 2 ") as caught:
        audit(log=[_log(used)[0], line])
    assert "ada" not in str(caught.value)
    assert audit().differences == 0  # nothing of it is left


def test_a_log_needs_nothing_of_a_session_from_one_statement_to_the_next(
    used: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a pooler each statement may have another one."""

    @contextmanager
    def of_another_session() -> Iterator[Any]:
        connection.close()
        with ledger_cursor() as sql:
            yield sql

    monkeypatch.setattr(provider_log, "ledger_cursor", of_another_session)
    report = audit(log=[*_log(used), _entry(new_id())])
    assert report.found.get("accepted_unknown_send") == 1


# ---------------------------------------------------------------------------------------------------- beside traffic


def test_full_traffic_makes_no_difference(rig: Rig) -> None:
    tenant = make_tenant()
    stop = threading.Event()

    def work(rail: Rail) -> None:
        try:
            while not stop.is_set():
                rig.turn(rail)
        finally:
            connections.close_all()

    def clock() -> None:
        try:
            while not stop.is_set():
                run_once()
        finally:
            connections.close_all()

    plan_blast(
        tenant,
        recipients=[{"to": f"u{i}@recipients.org"} for i in range(6_000)],
        from_=f"x@{tenant.slug}.org",
        subject="s",
        text="t",
    )
    submit_many(tenant, [request(tenant, i) for i in range(500)])
    threads = [threading.Thread(target=work, args=(rail,)) for rail in Rail] + [threading.Thread(target=clock)]
    for thread in threads:
        thread.start()
    try:
        reports = [audit() for _ in range(12)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [report.found for report in reports] == [{}] * 12
    assert Send.objects.filter(status="sent").exists()


def test_what_is_gone_a_moment_later_is_not_told(used: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _count_off_by_one()

    def mend(_: float) -> None:
        BlastCount.objects.filter(status="sent").update(n=150)

    monkeypatch.setattr(run.time, "sleep", mend)
    assert _found() == {}


# ---------------------------------------------------------------------------------------------------- the command


def _command(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("audit", *arguments, stdout=out)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()


def test_the_command_says_that_it_adds_up_and_keeps_the_result(used: Rig) -> None:
    code, told = _command()
    assert code == 0
    assert "It adds up. Looked at" in told
    kept = last_audit()
    assert kept is not None
    assert (kept.differences, kept.notices) == (0, 0)
    assert abs(kept.at - time.time()) < 60


def test_metrics_say_what_the_last_audit_found_and_nothing_before_it(used: Rig) -> None:
    def told() -> dict[str, float]:
        return {m.name: m.samples[0].value for m in from_redis() if m.name.startswith("notif_audit")}

    assert told() == {}
    Send.objects.filter(pk=_one(status="sent").pk).update(provider_id=None)
    code, _ = _command()
    assert code == 1
    assert told()["notif_audit_differences"] == 2  # the send says so, and its batch
    assert abs(told()["notif_audit_timestamp_seconds"] - time.time()) < 60


def test_the_command_ends_with_1_and_lists_a_bounded_number(used: Rig) -> None:
    Send.objects.filter(status="sent").update(provider_id=None)
    code, told = _command("--limit", "2")
    assert code == 1
    sent = Send.objects.filter(status="sent").count()
    assert f"difference sent_without_acceptance, {sent} times: {MEANINGS['sent_without_acceptance']}" in told
    assert f"… and {sent - 2} more" in told
    kept = last_audit()
    assert kept is not None
    assert kept.differences > sent


def test_the_command_speaks_json(used: Rig) -> None:
    code, told = _command("--json")
    found = json.loads(told)
    assert (code, found["differences"], found["found"]) == (0, 0, {})


def test_the_command_reads_a_log_that_the_sandbox_wrote(used: Rig, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as file:
        call_command("sandbox_log", "--url", used.sandbox.url, stdout=file)
    assert "@" not in path.read_text()
    code, told = _command("--provider-log", str(path))
    assert code == 0
    assert "provider's log" in told


def test_hours_leave_out_what_is_older(used: Rig) -> None:
    Send.objects.filter(status="sent").update(provider_id=None)
    assert _found(hours=1)["sent_without_acceptance"] > 0
    with connection.cursor() as cursor:
        cursor.execute("UPDATE messaging_sends SET id = overlay(id::text placing '0198' from 1 for 4)::uuid")
    assert "sent_without_acceptance" not in _found(hours=1)


@pytest.mark.parametrize(
    ("arguments", "word"), [(["--hours", "-1"], "above 0"), (["--provider-log", "/no/such"], "cannot be read")]
)
def test_what_cannot_be_told_ends_with_2(used: Rig, arguments: list[str], word: str) -> None:
    with pytest.raises(CommandError, match=word) as caught:
        call_command("audit", *arguments)
    assert caught.value.returncode == 2


def test_with_redis_away_the_audit_is_told_all_the_same(used: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "quick_client", lambda: Redis.from_url("redis://127.0.0.1:1"))
    assert _command()[0] == 0


def test_the_help_teaches() -> None:
    text = load_command_class("messaging", "audit").create_parser("manage.py", "audit").format_help()
    for word in ("Exit code 0", "examples:", "--provider-log", "sandbox_log"):
        assert word in text


def test_a_report_counts_all_and_lists_some() -> None:
    report = Report(limit=1)
    for i in range(3):
        report.add(Difference("counts", str(i)))
    assert (report.differences, len(report.examples)) == (3, 1)
