"""Interrupted, repeated, doubled and cancelled planning: every recipient once, and counts that add up."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.conf import settings
from django.db import ProgrammingError, connection, transaction
from django.utils import timezone

from core.models import Tenant
from core.security.crypto import keyed_digest
from core.security.hashing import canonical_json
from messaging.channels.email import Document
from messaging.domain.errors import Conflict, InvalidInput, NotFound
from messaging.domain.lifecycle import BlastState
from messaging.ledger.contents import compiled_content
from messaging.models import Blast, IdempotencyKey
from messaging.planner import PlanResult, Progress, resume_planning
from messaging.planner.draft import Draft
from messaging.planner.encode import Encoder
from messaging.services.control import cancel_blast, pause_blast
from tests.factories import allow_blasts, make_tenant
from tests.messaging.planner.rig import (
    assert_adds_up,
    csv_file,
    people,
    plan,
    recipients_of,
    rejects,
    start_child,
    write_csv,
)


class Interrupted(Exception):
    """What a crash looks like from inside."""


def stop_at(rows: int) -> Callable[[Progress], None]:
    def progress(told: Progress) -> None:
        if told.rows >= rows:
            raise Interrupted

    return progress


def interrupted(tenant: Tenant, recipients: Any, rows: int, **values: Any) -> Blast:
    with pytest.raises(Interrupted):
        plan(tenant, recipients, progress=stop_at(rows), **values)
    blast = assert_adds_up(Blast.objects.get().pk)
    assert (blast.state, blast.rows_read) == (BlastState.PLANNING, rows)
    return blast


MIXED = ["to,name", "a@x.org,A", "bad,B", "c@x.org,C", "a@x.org,D", "e@x.org,E", "f@x.org", "g@x.org,G"]


@pytest.mark.parametrize("by", ["key", "id"])
def test_resume_goes_on_where_it_stopped(tenant: Tenant, chunk_rows: Callable[[int], None], by: str) -> None:
    chunk_rows(2)
    blast = interrupted(tenant, csv_file(*MIXED), 4, idempotency_key="k")
    chunk_rows(3)  # a resumed planner need not cut where the first one did
    told: list[int] = []

    def tell(progress: Progress) -> None:
        told.append(progress.rows)

    if by == "key":
        result = plan(tenant, csv_file(*MIXED), idempotency_key="k", progress=tell)
    else:
        result = resume_planning(tenant, blast.pk, recipients=csv_file(*MIXED), progress=tell)
    assert told == [4, 7]
    assert result == PlanResult(blast.pk, 7, 4, 1, 2, BlastState.RUNNING)
    assert [to for to, _ in recipients_of(blast.pk)] == ["a@x.org", "c@x.org", "e@x.org", "g@x.org"]
    assert rejects(blast.pk) == [(3, "invalid_address"), (7, "csv_columns")]
    assert_adds_up(blast.pk)


def test_resume_when_all_is_planned_launches(tenant: Tenant) -> None:
    blast_id = plan(tenant, people(3), launch=False).blast_id
    assert resume_planning(tenant, blast_id, recipients=people(3)).state is BlastState.RUNNING


@pytest.mark.parametrize(
    "other",
    [
        people(3),  # shorter than what was read
        people(10, start=100),
        people(1, start=100) + people(9),  # one more at the top: the last one read would be planned twice, or missed
        [{"to": "bad"}, *people(9)],
        [*people(3), {"to": "bad"}, *people(7, start=3)],
    ],
)
def test_resume_with_another_list(tenant: Tenant, chunk_rows: Callable[[int], None], other: list[Any]) -> None:
    chunk_rows(2)
    blast = interrupted(tenant, people(10), 4)
    with pytest.raises(Conflict) as caught:
        resume_planning(tenant, blast.pk, recipients=other)
    assert caught.value.code == "recipients_differ"
    assert assert_adds_up(blast.pk).rows_read == 4


def test_resume_of_a_foreign_or_unknown_blast(tenant: Tenant) -> None:
    blast_id = plan(tenant, people(1), launch=False).blast_id
    for who, which in ((make_tenant(), blast_id), (tenant, uuid4())):
        with pytest.raises(NotFound):
            resume_planning(who, which, recipients=people(1))


def test_resume_checks_the_list_first(tenant: Tenant) -> None:
    blast_id = plan(tenant, people(1), launch=False).blast_id
    with pytest.raises(InvalidInput) as caught:
        resume_planning(tenant, blast_id, recipients=csv_file("to", "a@x.org"))
    assert caught.value.code == "undefined_variable"


def test_source_that_fails_midway_can_be_resumed(tenant: Tenant, chunk_rows: Callable[[int], None]) -> None:
    chunk_rows(100)

    def failing() -> Iterator[dict[str, Any]]:
        yield from people(350)
        raise Interrupted

    with pytest.raises(Interrupted):
        plan(tenant, failing(), idempotency_key="k")
    blast = assert_adds_up(Blast.objects.get().pk)
    assert blast.rows_read == 350  # three whole chunks, and what there was of the fourth
    assert plan(tenant, people(351), idempotency_key="k").planned == 351
    assert_adds_up(blast.pk)


def test_a_failed_query_of_the_source_is_not_covered_by_another_error(
    tenant: Tenant, chunk_rows: Callable[[int], None]
) -> None:
    chunk_rows(10)

    def failing() -> Iterator[dict[str, Any]]:
        yield from people(125)
        with connection.cursor() as cursor:
            cursor.execute("SELECT nothing")

    with pytest.raises(ProgrammingError, match="nothing"), transaction.atomic():
        plan(tenant, failing())


def test_a_slow_list_is_not_kept_back_for_its_next_chunk(
    tenant: Tenant, chunk_rows: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk_rows(10)
    monkeypatch.setattr("messaging.planner.rows.SLOW_SECONDS", 0.0)
    encoded = threading.Event()
    encode = Encoder.encode
    monkeypatch.setattr(Encoder, "encode", lambda *a: (encode(*a), encoded.set())[0])
    done: list[bool] = []

    def slow() -> Iterator[dict[str, Any]]:
        yield from people(100)  # looked at beforehand
        yield from people(10, start=100)
        for person in people(8, start=110):
            done.append(Blast.objects.get().rows_read >= 110)
            assert encoded.wait(10)
            time.sleep(0.05)  # the thread has set the event, and is about to say that it is done
            yield person

    assert plan(tenant, slow()).planned == 118
    assert done[0] is False
    assert done[-1] is True  # before its own chunk was full, or the list had ended


def test_same_key_answers_the_same(tenant: Tenant) -> None:
    first = plan(tenant, people(3), idempotency_key="k")
    pause_blast(first.blast_id)
    again = plan(tenant, people(5), idempotency_key="k")  # the list is not read: the blast is on its way
    assert again == PlanResult(first.blast_id, 3, 3, 0, 0, BlastState.PAUSED)
    assert again.replayed
    assert not first.replayed
    assert IdempotencyKey.objects.get().answer == {"blast_id": str(first.blast_id)}
    assert Blast.objects.count() == 1


@pytest.mark.parametrize(
    "other",
    [
        {"subject": "Other"},
        {"text": "Other {{ name }}"},
        {"category": "product"},
        {"name": "Other"},
        {"headers": {"X-Other": "1"}},
        {"not_before": timezone.now() + timedelta(hours=1)},
        {"expires_at": timezone.now() + timedelta(hours=1)},
    ],
)
def test_same_key_with_another_blast(tenant: Tenant, other: dict[str, Any]) -> None:
    allow_blasts(tenant)
    plan(tenant, people(1), idempotency_key="k")
    with pytest.raises(Conflict) as caught:
        plan(tenant, people(1), idempotency_key="k", **other)
    assert caught.value.code == "idempotency_key_reused"
    assert Blast.objects.count() == 1


def draft_of(**values: Any) -> Draft:
    absent = dict.fromkeys(("html", "reply_to", "headers", "not_before", "expires_at"))
    given = {"from_": "a@b.example", "subject": "News", "text": "Hello", "category": "marketing", "channel": "email"}
    return Draft.parse(**absent | given | {"name": "", "idempotency_key": "k"} | values)


def test_a_part_that_documents_get_tomorrow_changes_no_digest_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = draft_of()
    digest, today = draft.digest(), json.loads(draft.document.to_bytes())
    tomorrow = canonical_json(today | {"v": 2, "attachments": [], "preview": None})
    monkeypatch.setattr(Document, "to_bytes", lambda self: tomorrow)
    assert draft.digest() == digest


def test_a_key_of_the_release_before_is_known_by_the_digest_that_it_has(tenant: Tenant) -> None:
    first = plan(tenant, people(3), idempotency_key="k")
    document = Blast.objects.select_related("content").get().content
    stored = compiled_content(document).document.to_bytes().decode()
    values = {"document": stored, "channel": "email", "category": "marketing", "name": "", "not_before": None}
    older = keyed_digest(canonical_json(values | {"expires_at": None}))
    assert IdempotencyKey.objects.update(request_digest=older) == 1
    assert plan(tenant, people(3), idempotency_key="k") == first
    with pytest.raises(Conflict):
        plan(tenant, people(3), idempotency_key="k", name="Other")


def test_keys_belong_to_a_tenant(tenant: Tenant) -> None:
    first, second = plan(tenant, people(1), idempotency_key="k"), plan(make_tenant(), people(1), idempotency_key="k")
    assert first.blast_id != second.blast_id


def test_cancelled_while_planning(tenant: Tenant, chunk_rows: Callable[[int], None]) -> None:
    chunk_rows(2)

    def cancel(progress: Progress) -> None:
        if progress.rows == 2:
            cancel_blast(progress.blast_id)

    with pytest.raises(Conflict) as caught:
        plan(tenant, people(7), idempotency_key="k", progress=cancel)
    assert caught.value.code == "blast_cancelled"
    blast = assert_adds_up(Blast.objects.get().pk)
    assert (blast.state, blast.rows_read) == (BlastState.CANCELLED, 2)
    assert plan(tenant, people(7), idempotency_key="k").state is BlastState.CANCELLED


@pytest.mark.parametrize(("launch", "code"), [(False, "planning_in_progress"), (True, "blast_launched")])
def test_second_planner_in_between(tenant: Tenant, chunk_rows: Callable[[int], None], launch: bool, code: str) -> None:
    chunk_rows(2)

    def second(progress: Progress) -> None:
        if progress.rows == 4:
            assert plan(tenant, people(9), idempotency_key="k", launch=launch).planned == 9

    with pytest.raises(Conflict) as caught:
        plan(tenant, people(9), idempotency_key="k", progress=second)
    assert caught.value.code == code
    assert len(recipients_of(Blast.objects.get().pk)) == 9
    assert_adds_up(Blast.objects.get().pk)


def test_two_planners_at_once(committed_tenant: Tenant, chunk_rows: Callable[[int], None]) -> None:
    chunk_rows(100)
    start = threading.Barrier(2)
    results: list[PlanResult | Conflict] = []

    def run() -> None:
        start.wait()
        try:
            results.append(plan(committed_tenant, people(2000), idempotency_key="k"))
        except Conflict as error:
            results.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    blast = assert_adds_up(Blast.objects.get().pk)
    assert (blast.state, blast.planned, blast.duplicates) == (BlastState.RUNNING, 2000, 0)
    assert len({to for to, _ in recipients_of(blast.pk)}) == 2000
    assert any(isinstance(result, PlanResult) for result in results)
    codes = {result.code for result in results if isinstance(result, Conflict)}
    assert codes <= {"planning_in_progress", "blast_launched"}


@pytest.fixture
def other_connection(committed_tenant: Tenant) -> Iterator[psycopg.Connection]:
    database = settings.DATABASES["default"]
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": psycopg.Cursor}) as other:
        assert other.info.dbname == database["NAME"]
        yield other


def wait_until(true: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation IS NOT NULL")
        return bool(cursor.fetchone()[0])


@pytest.mark.process
def test_killed_in_the_middle_of_a_chunk(
    committed_tenant: Tenant, other_connection: psycopg.Connection, tmp_path: Path
) -> None:
    """The third chunk has a bad row, and its rejection is kept waiting: its sends are written, nothing is committed."""
    path = write_csv(tmp_path / "list.csv", 20_000, {5: "person1@example.org,again", 12_500: "bad row"})
    other_connection.execute("LOCK TABLE messaging_blast_rejects IN SHARE MODE")
    child = start_child("tests.messaging.planner.child", "plan", committed_tenant.pk, path, "k")
    try:
        assert child.stdout is not None
        assert [int(child.stdout.readline()) for _ in range(3)] == [0, 5_000, 10_000]
        wait_until(waits_for_a_lock)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == -9
    other_connection.rollback()

    result = plan(committed_tenant, path, idempotency_key="k")
    assert result == PlanResult(result.blast_id, 20_002, 20_000, 1, 1, BlastState.RUNNING)
    assert rejects(result.blast_id) == [(12_504, "csv_columns")]
    assert_adds_up(result.blast_id)
    planned = [to for to, _ in recipients_of(result.blast_id)]
    assert planned == [f"person{i}@example.org" for i in range(20_000)]


@pytest.mark.process
def test_second_planner_waits_for_the_chunk_in_hand(
    committed_tenant: Tenant, other_connection: psycopg.Connection, tmp_path: Path
) -> None:
    """Both read 20,001 rows; the first is held within its third chunk until the second is there."""
    path = write_csv(tmp_path / "list.csv", 20_000, {12_500: "bad row"})
    other_connection.execute("LOCK TABLE messaging_blast_rejects IN SHARE MODE")
    children: list[subprocess.Popen[str]] = []
    try:
        for _ in range(2):
            children.append(
                start_child(
                    "tests.messaging.planner.child",
                    "plan",
                    committed_tenant.pk,
                    path,
                    "k",
                    stderr=subprocess.PIPE,
                )
            )
            wait_until(waits_for_a_lock)
        wait_until(lambda: Blast.objects.get().rows_read == 10_000)
        other_connection.rollback()
        ends = [child.communicate(timeout=30) for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    blast = assert_adds_up(Blast.objects.get().pk)
    assert (blast.state, blast.planned, blast.rejected) == (BlastState.RUNNING, 20_000, 1)
    assert 0 in [child.returncode for child in children]
    for child, (_, stderr) in zip(children, ends, strict=True):
        assert child.returncode == 0 or "messaging.domain.errors.Conflict" in stderr
