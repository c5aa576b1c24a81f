"""What refuses a whole blast, before anything is stored; and lists of which nothing is left."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from core.models import Tenant
from messaging.errors import Forbidden, InvalidInput, MessagingError, TooLarge
from messaging.lifecycle import BlastState
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


def test_template_that_fails_for_one_row_only_is_not_refused(tenant: Tenant) -> None:
    # Rendering a million rows twice is not worth it: the claim finds the one.
    result = plan(tenant, csv_file("to,name", "a@x.org,0", "b@x.org,2"), text="{{ 10 | divided_by: name }}")
    assert result.planned == 2


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
