"""What a planned blast is: its sends, its rejected rows, its counts, its launch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import transaction
from django.utils import timezone

from core.broker import queues
from core.models import Tenant
from core.security.crypto import fingerprint
from messaging.domain.errors import Conflict, InvalidInput, NotFound
from messaging.domain.lifecycle import BlastState, SendStatus
from messaging.ledger.planning import Reject
from messaging.models import Blast, BlastHint, BlastReject, Send
from messaging.planner import Progress, launch_blast
from messaging.planner.rows import Recipient, Row, chunks
from messaging.services.control import cancel_blast
from tests.factories import allow_blasts, make_tenant, statuses
from tests.messaging.planner.rig import assert_adds_up, csv_file, people, plan, recipients_of, rejects


def test_sends_of_a_blast(tenant: Tenant) -> None:
    result = plan(tenant, csv_file("to,name", "Ada <ada@x.org>,Ada", "bob@y.org,Bob"), name="Spring")
    blast = assert_adds_up(result.blast_id)
    assert (result.rows, result.planned, result.duplicates, result.rejected) == (2, 2, 0, 0)
    assert result.state is BlastState.RUNNING
    assert recipients_of(blast.pk) == [("Ada <ada@x.org>", {"name": "Ada"}), ("bob@y.org", {"name": "Bob"})]
    first, second = Send.objects.filter(blast=blast).order_by("id")
    assert bytes(first.fingerprint) == fingerprint("ada@x.org")
    assert bytes(second.fingerprint) == fingerprint("bob@y.org")
    assert {
        (s.tenant_id, s.content_id, s.category, s.rail, s.priority, s.status, s.attempts) for s in (first, second)
    } == {(tenant.pk, blast.content_id, "marketing", "marketing", 2, "queued", 0)}
    assert (blast.state, blast.name) == ("running", "Spring")
    assert list(BlastHint.objects.values_list("blast_id", "has_due", "low")) == [(blast.pk, True, first.pk)]
    assert blast.launched_at is not None


@pytest.mark.parametrize(
    ("category", "rail", "priority"), [("transactional", "transactional", 0), ("product", "transactional", 1)]
)
def test_category_decides_the_rail(tenant: Tenant, category: str, rail: str, priority: int) -> None:
    allow_blasts(tenant)
    blast = Blast.objects.get(pk=plan(tenant, people(1), category=category).blast_id)
    send = Send.objects.get()
    assert (blast.rail, blast.priority, send.rail, send.priority) == (rail, priority, rail, priority)


def test_duplicates_within_and_across_chunks(tenant: Tenant, chunk_rows: Callable[[int], None]) -> None:
    chunk_rows(2)
    result = plan(
        tenant,
        csv_file("to,name", "a@x.org,1", "a@X.org,2", "A@x.org,3", "b@x.org,4", "Ada <a@x.org>,5", "a@x.org,6"),
    )
    assert (result.rows, result.planned, result.duplicates, result.rejected) == (6, 2, 4, 0)
    assert recipients_of(result.blast_id) == [("a@x.org", {"name": "1"}), ("b@x.org", {"name": "4"})]
    assert_adds_up(result.blast_id)


def test_same_address_in_two_blasts_is_two_sends(tenant: Tenant) -> None:
    assert plan(tenant, people(2)).planned == plan(tenant, people(2)).planned == 2


def test_rejected_rows_have_line_and_code_and_never_the_row(tenant: Tenant, chunk_rows: Callable[[int], None]) -> None:
    chunk_rows(3)
    result = plan(
        tenant,
        csv_file(
            "to,name,code",
            "good@x.org,Ada,1",
            "secret.x.org,Ada,1",
            f"{'s' * 65}@secret.org,Ada,1",
            f"a@{'secret.' * 40}org,Ada,1",
            "secret@x.org,Ada",
            "secret@x.org,Ada,1,2",
            'secret@x.org,"A\nB",1',
            '"secret@x.org\nBcc: b@x.org",Ada,1',
            "secret@x.org,A\0da,1",
            f"secret@x.org,{'x' * 70_000},1",
            f"secret@x.org,Ada,{'y' * 17_000}",
            ",Ada,1",
            'last@x.org,Ada,"1\n2"',
        ),
        subject="{{ name }}",
        text="{{ code }}",
    )
    assert rejects(result.blast_id) == [
        (3, "invalid_address"),
        (4, "address_too_long"),
        (5, "address_too_long"),
        (6, "csv_columns"),
        (7, "csv_columns"),
        (8, "header_injection"),
        (10, "header_injection"),
        (12, "csv_nul"),
        (13, "csv_row_too_large"),
        (14, "variables_too_large"),
        (15, "invalid_address"),
    ]
    assert [to for to, _ in recipients_of(result.blast_id)] == ["good@x.org", "last@x.org"]
    assert_adds_up(result.blast_id)
    reasons = " ".join(BlastReject.objects.values_list("reason", flat=True)).lower()
    assert not any(word in reasons for word in ("secret", "ada", "bcc", "@x.org"))


def test_rejected_mappings(tenant: Tenant) -> None:
    bad: list[Any] = [
        "a@x.org",
        {"to": "a@x.org", "name": "A"},
        {"to": "a@x.org", "variables": ["A"]},
        {"to": "a@x.org", "variables": {"name": float("nan")}},
        {"to": "a@x.org", "variables": {"name": "\ud800"}},
        {"to": "a@x.org", "variables": {"name": "x" * 20_000}},
        {"to": 5, "variables": {"name": "A"}},
        {"to": "a@x.org", "variables": {"name": {"first": ["A\rB"]}}},
        {"to": "a@x.org"},
    ]
    result = plan(tenant, (row for row in [*bad, *people(1)]), subject="{{ name }}")
    assert rejects(result.blast_id) == [
        (1, "invalid_type"),
        (2, "unknown_field"),
        (3, "invalid_type"),
        (4, "invalid_variables"),
        (5, "invalid_variables"),
        (6, "variables_too_large"),
        (7, "invalid_type"),
        (8, "header_injection"),
        (9, "undefined_variable"),
    ]
    assert result.planned == 1


def test_mapping_without_a_variable_that_has_a_default(tenant: Tenant) -> None:
    result = plan(tenant, [{"to": "a@x.org"}, *people(1)], text="{{ name | default: 'you' }}")
    assert result.planned == 2


def test_what_the_template_does_not_use_is_not_stored(tenant: Tenant) -> None:
    of_csv = plan(tenant, csv_file("to,salary,name", "a@x.org,12,Ada"))
    of_list = plan(tenant, [{"to": "a@x.org", "variables": {"salary": 12, "name": "Ada"}}])
    assert recipients_of(of_csv.blast_id) == recipients_of(of_list.blast_id) == [("a@x.org", {"name": "Ada"})]


def test_schedule_and_expiry(tenant: Tenant) -> None:
    start, end = timezone.now() + timedelta(hours=1), timezone.now() + timedelta(hours=2)
    result = plan(tenant, people(2), not_before=start, expires_at=end)
    assert statuses(blast=result.blast_id) == {"scheduled": 2}
    assert set(Send.objects.values_list("not_before", "expires_at")) == {(start, end)}
    blast = Blast.objects.get(pk=result.blast_id)
    # Running, with nothing to find yet: the clock says when there is.
    assert (blast.state, list(BlastHint.objects.all())) == ("running", [])


def test_start_in_the_past_is_due(tenant: Tenant) -> None:
    assert statuses(blast=plan(tenant, people(1), not_before=timezone.now() - timedelta(1)).blast_id) == {"queued": 1}


def test_without_launch_nothing_is_sent(tenant: Tenant, django_capture_on_commit_callbacks: Any) -> None:
    with django_capture_on_commit_callbacks() as callbacks:
        result = plan(tenant, people(2), launch=False)
    assert result.state is BlastState.PLANNING
    assert not callbacks
    with django_capture_on_commit_callbacks() as callbacks:
        blast = launch_blast(result.blast_id, tenant_id=tenant.pk)
        again = launch_blast(result.blast_id)
    assert len(callbacks) == 1  # one ticket
    assert (blast.state, again.launched_at) == (BlastState.RUNNING, blast.launched_at)


def test_launch_of_what_cannot_be(tenant: Tenant) -> None:
    planned = plan(tenant, people(1), launch=False).blast_id
    with pytest.raises(NotFound):
        launch_blast(planned, tenant_id=make_tenant().pk)
    cancel_blast(planned)
    with pytest.raises(Conflict, match="cancelled"):
        launch_blast(planned)
    empty = Blast.objects.get(pk=planned)
    empty.pk, empty.state, empty.planned = None, BlastState.PLANNING, 0
    empty.pk = Blast._meta.pk.get_default()  # type: ignore[union-attr]
    empty.save(force_insert=True)
    with pytest.raises(InvalidInput) as caught:
        launch_blast(empty.pk)
    assert caught.value.code == "no_valid_recipients"


def test_launch_leaves_a_ticket_on_the_rail(committed_tenant: Tenant, redis: object) -> None:
    queues.breaker.reset()
    plan(committed_tenant, people(1))
    assert queues.depth("notif.email.marketing") == 1


def test_joins_the_callers_transaction(tenant: Tenant, chunk_rows: Callable[[int], None]) -> None:
    chunk_rows(2)
    with transaction.atomic():
        result = plan(tenant, [*people(5), *people(5)])
        assert (result.planned, result.duplicates) == (5, 5)
        assert_adds_up(result.blast_id)
        transaction.set_rollback(True)
    assert not Blast.objects.exists()
    assert not Send.objects.exists()


def test_progress_is_what_is_committed(tenant: Tenant, chunk_rows: Callable[[int], None]) -> None:
    chunk_rows(2)
    told: list[Progress] = []

    def tell(progress: Progress) -> None:
        assert_adds_up(progress.blast_id)
        told.append(progress)

    plan(tenant, people(5), progress=tell)
    assert [(p.rows, p.planned, p.total) for p in told] == [(0, 0, 5), (2, 2, 5), (4, 4, 5), (5, 5, 5)]


def test_a_chunk_costs_a_fixed_number_of_statements(
    tenant: Tenant, chunk_rows: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[object] = []
    for name in ("execute", "copy"):
        real = getattr(psycopg.Cursor, name)

        def counted(self: Any, query: object, *args: Any, real: Any = real, **values: Any) -> Any:
            statements.append(query)
            return real(self, query, *args, **values)

        monkeypatch.setattr(psycopg.Cursor, name, counted)

    def cost(chunks: int, rows: int) -> int:
        statements.clear()
        chunk_rows(rows)
        plan(tenant, [row for i in range(chunks) for row in [{"to": "bad"}, *people(rows - 1, start=i * rows)]])
        return len(statements)

    cost(1, 10)  # stores the content, which the others find
    a_chunk = cost(2, 10) - cost(1, 10)
    assert a_chunk <= 10  # savepoint and its release, lock, look, stage, empty, copy, insert, rejects, progress
    assert cost(3, 500) - cost(1, 500) == 2 * a_chunk


def test_log_has_ids_and_counts_only(tenant: Tenant, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "messaging"):
        result = plan(tenant, csv_file("to,name", "ada@secret.org,Ada", "bad secret,Bob"))
    planned = next(record for record in caplog.records if record.message == "blast_planned")
    fields = vars(planned)
    assert (fields["blast"], fields["rows"], fields["planned"]) == (result.blast_id, 2, 1)
    assert "secret" not in repr([vars(record) for record in caplog.records])


def test_chunks_are_bounded_by_rows_and_by_size() -> None:
    rows: list[Row] = [Recipient(i, "", {}, 10) for i in range(10)]
    assert [len(c) for c in chunks(rows, max_rows=4)] == [4, 4, 2]
    assert [len(c) for c in chunks(rows, max_size=25)] == [3, 3, 3, 1]
    assert list(chunks([])) == []
    assert [len(c) for c in chunks([Reject(1, "", "")] * 5, max_rows=5, max_size=1)] == [5]


def test_status_names_are_those_of_the_lifecycle(tenant: Tenant) -> None:
    plan(tenant, people(1))
    plan(tenant, people(1), not_before=timezone.now() + timedelta(hours=1))
    assert set(Send.objects.values_list("status", flat=True)) == {SendStatus.QUEUED, SendStatus.SCHEDULED}
