"""What refuses a whole blast, before anything is stored; and lists of which nothing is left."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from core.models import Tenant
from messaging.channels.templates import liquid as engine
from messaging.channels.templates.filters import Spec, metered
from messaging.channels.templates.runtime import Part
from messaging.domain.errors import Forbidden, InvalidInput, MessagingError, TooLarge
from messaging.domain.lifecycle import BlastState
from messaging.models import Blast, Content, IdempotencyKey, Send
from messaging.planner import plan_blast
from tests.messaging.planner.rig import csv_file, people, plan, rejects


def assert_nothing_stored() -> None:
    for model in (Blast, Send, Content, IdempotencyKey):
        assert not model.objects.exists()


def refused(tenant: Tenant, recipients: Any = None, **values: Any) -> MessagingError:
    with pytest.raises(MessagingError) as caught:
        plan(tenant, people(1) if recipients is None else recipients, idempotency_key="k", **values)
    assert_nothing_stored()
    return caught.value


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"from_": "nobody"}, "invalid_address"),
        ({"subject": " "}, "empty_subject"),
        ({"text": None}, "empty_body"),
        ({"text": "{{ name"}, "template_syntax"),
        ({"headers": {"Bcc": "x@y.org"}}, "reserved_header"),
        ({"category": "spam"}, "unknown_category"),
        ({"channel": "sms"}, "unknown_channel"),
        ({"name": "x" * 201}, "invalid_name"),
        ({"name": "two\nlines"}, "invalid_name"),
        ({"not_before": "tomorrow"}, "invalid_time"),
        ({"not_before": timezone.now() + timedelta(days=366)}, "too_far_ahead"),
        ({"expires_at": timezone.now()}, "expires_too_early"),
        ({"recipients": []}, "no_recipients"),
        ({"recipients": 5}, "invalid_type"),
        ({"recipients": {"to": "a@x.org"}}, "invalid_type"),
        ({"recipients": b"to\na@x.org\n"}, "invalid_type"),
        ({"recipients": "/nowhere/list.csv"}, "csv_unreadable"),
    ],
)
def test_refused_input(tenant: Tenant, values: dict[str, Any], code: str) -> None:
    error = refused(tenant, **values)
    assert isinstance(error, InvalidInput)
    assert error.code == code


def test_body_too_large(tenant: Tenant) -> None:
    assert isinstance(refused(tenant, text="x" * 1_000_001), TooLarge)


def test_foreign_domain(tenant: Tenant) -> None:
    error = refused(tenant, from_="news@else.org")
    assert isinstance(error, Forbidden)
    assert error.code == "sender_domain_not_allowed"


def test_inactive_tenant(tenant: Tenant) -> None:
    tenant.active = False
    assert refused(tenant).code == "tenant_inactive"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ([], "csv_empty"),
        (["to,name"], "csv_no_rows"),
        (["to,name", "", ""], "csv_no_rows"),
        (["email,name", "a@x.org,Ada"], "csv_no_to_column"),
    ],
)
def test_refused_csv(tenant: Tenant, data: list[str], code: str) -> None:
    assert refused(tenant, csv_file(*data)).code == code


def test_wrong_encoding_at_the_end_of_a_large_file_stores_nothing(tenant: Tenant, tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(b"to,name\n" + b"a@x.org,A\n" * 30_000 + "b@x.org,José\n".encode("latin-1"))
    error = refused(tenant, path)
    assert error.code == "csv_encoding"
    assert "Line 30002 " in error.message


@pytest.mark.parametrize("where", ["subject", "text", "html"])
def test_undefined_variable_is_named(tenant: Tenant, where: str) -> None:
    error = refused(tenant, csv_file("to,name", "a@x.org,Ada"), **{where: "{{ first_name }} {{ Name }}"})
    assert error.code == "undefined_variable"
    assert "Name, first_name" in error.message


def test_undefined_variable_of_mappings(tenant: Tenant) -> None:
    assert refused(tenant, people(3), text="{{ code }}").code == "undefined_variable"


def test_template_that_works_with_no_row(tenant: Tenant) -> None:
    error = refused(tenant, csv_file("to,name", "a@x.org,0", "b@x.org,0"), text="{{ 10 | divided_by: name }}")
    assert error.code == "template_error"


@pytest.mark.parametrize(
    ("template", "bad", "code"),
    [
        ({"text": "{{ 10 | divided_by: name }}"}, "0", "template_error"),
        ({"subject": "{{ name }}"}, " ", "rendered_empty_subject"),
        ({"subject": "{% if name == 'Bob' %}x{% endif %}{{ name | remove: 'Ada' }}"}, "Ada", "rendered_empty_subject"),
        ({"subject": "Hello {{ name }}"}, "x" * 999, "rendered_too_large"),
        ({"headers": {"X-Name": "{{ name }}"}}, "x" * 999, "rendered_too_large"),
        ({"text": "{{ name }}"}, "", "rendered_empty_body"),
        ({"text": "{{ name | date: '%Y' }}"}, "soon", "template_error"),
        ({"text": "{% if name == 'bad' %}{{ name.first_name }}{% endif %}x"}, "bad", "undefined_variable"),
        (
            {"text": "x{% for i in (1..name) %}{% for j in (1..4) %}{% endfor %}{% endfor %}"},
            "9999",
            "template_too_costly",
        ),
        ({"text": "{{ name | url_decode }}x"}, "%00", "rendered_invalid_text"),
    ],
)
def test_rows_that_could_not_be_rendered_are_rejected_by_line(
    tenant: Tenant, template: dict[str, Any], bad: str, code: str
) -> None:
    result = plan(tenant, csv_file("to,name", "a@x.org,2", f"b@x.org,{bad}", "c@x.org,2026"), **template)
    assert (result.planned, result.rejected) == (2, 1)
    assert rejects(result.blast_id) == [(3, code)]
    assert result.blast_id == Blast.objects.get().pk


def test_rows_that_cannot_fail_are_not_rendered(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    render = Part.render

    def counted(self: Part, variables: Any, now: Any, budget: Any, part: str) -> str:
        calls.append(part)
        return render(self, variables, now, budget, part)

    monkeypatch.setattr(Part, "render", counted)
    fields = {
        "text": "Hello {% if name %}{{ name | upcase }}{% endif %}",
        "html": "<p>Hello {{ name | default: 'you' }}",
    }
    plan(tenant, people(500), subject="News for {{ name }}", **fields)
    assert calls == ["subject", "html", "text"]  # of the one row that shows that list and template belong together
    calls.clear()
    plan(tenant, people(500), subject="{{ name }}", **fields)
    assert sorted(calls) == sorted(["subject"] * 501 + ["html", "text"])
    calls.clear()
    long = [{"to": "long@x.org", "variables": {"name": "x" * 900}}]
    assert plan(tenant, [*people(50), *long], subject="News for {{ name }}", **fields).planned == 51
    assert calls == ["subject", "html", "text", "subject"]


@pytest.mark.parametrize(
    "to", ["{{ v }}@x.example", "{{v}}@x.example", "{%v%}@x.example", "Ada {{ n }} <ada@x.example>"]
)
def test_a_recipient_with_liquid_in_it_is_rejected(tenant: Tenant, to: str) -> None:
    result = plan(tenant, [{"to": to, "variables": {"name": "A"}}, *people(1)])
    assert rejects(result.blast_id) == [(1, "liquid_not_allowed")]


def test_a_fault_of_ours_costs_one_row(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine._PLAIN.filters, "sum", metered(Spec(lambda value: 1 // int(value))))
    result = plan(tenant, csv_file("to,name", "a@x.org,1", "b@x.org,0"), text="{{ name | sum }}")
    assert rejects(result.blast_id) == [(3, "render_bug")]


def test_list_of_bad_rows_only(tenant: Tenant) -> None:
    with pytest.raises(InvalidInput) as caught:
        plan(tenant, csv_file("to,name", "nobody,A", "b@x.org"), idempotency_key="k")
    error = caught.value
    assert error.code == "no_valid_recipients"
    blast = Blast.objects.get()
    assert "None of the 2 rows" in error.message
    assert "line 2" in error.message
    assert str(blast.pk) in error.message
    assert "nobody" not in error.message
    assert blast.state == BlastState.CANCELLED
    assert (blast.rows_read, blast.planned, blast.rejected) == (2, 0, 2)
    assert rejects(blast.pk) == [(2, "invalid_address"), (3, "csv_columns")]
    assert not Send.objects.exists()
    # The key is free for the corrected list.
    assert plan(tenant, csv_file("to,name", "a@x.org,A"), idempotency_key="k").planned == 1


def test_unknown_arguments_are_python_errors(tenant: Tenant) -> None:
    with pytest.raises(TypeError):
        plan_blast(tenant, recipients=[], from_="a@acme.org", subject="s", rail="transactional")  # type: ignore[call-arg]
