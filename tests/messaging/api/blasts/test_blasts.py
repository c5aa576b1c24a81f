"""POST blasts, GET blasts, GET blasts/{id}, launch, pause, resume, cancel."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from core.db.cursor import LedgerCursor
from messaging.api.blasts import fields as api
from messaging.api.blasts.views import MAX_BODY
from messaging.api.slots import slot_of
from messaging.ledger.folding import fold_deltas
from messaging.models import Blast, BlastReject, BlastUpload, Content, IdempotencyKey, Send, SenderDomain
from tests.factories import allow_blasts, make_blast
from tests.messaging.api.blasts.rig import URL, Blasts, assert_adds_up, people, refused
from tests.messaging.tenant_rig import Speaker, error_of, make_tenant


@pytest.fixture
def other(speaker: Speaker) -> Blasts:
    return Blasts.of(make_tenant("other", "other.example"))


def test_an_empty_blast_is_made_and_found(blasts: Blasts) -> None:
    answer = blasts.create(name="Spring")
    assert answer.status_code == 201
    body = answer.json()
    assert answer["Location"] == f"{URL}/{body['id']}"
    assert body == blasts.shown(body["id"])
    assert body == {
        "id": body["id"],
        "name": "Spring",
        "state": "planning",
        "reason": None,
        "category": "marketing",
        "channel": "email",
        "rail": "marketing",
        "created_at": body["created_at"],
        "launched_at": None,
        "finished_at": None,
        "not_before": None,
        "expires_at": None,
        "uploads": 0,
        "uploading": False,
        "rows": 0,
        "planned": 0,
        "duplicates": 0,
        "rejected": 0,
        "counts": dict.fromkeys(
            ("scheduled", "queued", "sending", "sent", "failed", "expired", "cancelled", "ambiguous"), 0
        ),
        "rate_per_second": 0.0,
        "eta_seconds": None,
        "lane": {"isolated": False, "held": None},
        "unresolved": 0,
    }


def test_every_field_reaches_the_ledger(blasts: Blasts) -> None:
    allow_blasts(blasts.speaker.tenant, "product")
    start, end = timezone.now() + timedelta(hours=1), timezone.now() + timedelta(hours=2)
    blast = blasts.made(
        category="product",
        channel="email",
        html="<p>{{ name }}</p>",
        reply_to=["help@shop.example"],
        headers={"X-Campaign": "spring"},
        name="Spring",
        not_before=start.isoformat(),
        expires_at=end.isoformat(),
        recipients=people(2),
    )
    found = Blast.objects.get(pk=blast)
    assert (found.rail, found.not_before, found.expires_at) == ("transactional", start, end)
    assert blasts.shown(blast)["counts"]["scheduled"] == 2
    assert set(Send.objects.values_list("not_before", "expires_at", "category")) == {(start, end, "product")}


def test_inline_recipients_are_planned(blasts: Blasts) -> None:
    bad = [{"to": "nobody"}, "x", {"to": "a@example.org", "extra": 1}, {"to": "b@example.org"}]
    answer = blasts.create(recipients=[*people(3), *people(1), *bad])
    body = answer.json()
    assert (body["rows"], body["planned"], body["duplicates"], body["rejected"]) == (8, 3, 1, 4)
    assert (body["state"], body["counts"]["queued"]) == ("planning", 3)
    assert blasts.rejected(body["id"]) == [
        ["upload", "line", "code", "reason"],
        *([["1", str(n), code, why] for n, code, why in BlastReject.objects.values_list("line", "code", "reason")]),
    ]
    assert [code for _, _, code, _ in blasts.rejected(body["id"])[1:]] == [
        "undefined_variable",
        "invalid_type",
        "unknown_field",
        "undefined_variable",
    ]
    assert_adds_up(body["id"])


def test_launch_with_the_request(blasts: Blasts, django_capture_on_commit_callbacks: Any) -> None:
    with django_capture_on_commit_callbacks() as tickets:
        body = blasts.create(recipients=people(2), launch=True).json()
    assert (body["state"], body["counts"]["queued"], len(tickets)) == ("running", 2, 1)
    assert body["launched_at"]


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"category": None}, "missing_field", "category"),
        ({"category": "spam"}, "unknown_category", "category"),
        ({"from_": None}, "missing_field", "from"),
        ({"subject": None}, "missing_field", "subject"),
        ({"to": "a@example.org"}, "unknown_field", "to"),
        ({"variables": {}}, "unknown_field", "variables"),
        ({"rail": "transactional"}, "rail_not_choosable", "rail"),
        ({"attachments": []}, "attachments_not_supported", "attachments"),
        ({"channel": "sms"}, "unknown_channel", "channel"),
        ({"name": "a\nb"}, "invalid_name", "name"),
        ({"name": "x" * 201}, "invalid_name", "name"),
        ({"name": 5}, "invalid_name", "name"),
        ({"text": "{% if %}"}, "template_syntax", "text"),
        ({"text": None}, "empty_body", "html"),
        ({"from_": "nobody"}, "invalid_address", "from"),
        ({"not_before": "tomorrow"}, "invalid_time", "not_before"),
        ({"not_before": "2999-01-01T00:00:00Z"}, "too_far_ahead", "not_before"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_too_early", "expires_at"),
        ({"recipients": {"to": "a@example.org"}}, "invalid_type", "recipients"),
        ({"recipients": "a@example.org"}, "invalid_type", "recipients"),
        ({"recipients": []}, "no_recipients", "recipients"),
        ({"recipients": [{"to": "a@example.org"}]}, "undefined_variable", "variables"),
        ({"recipients": [{"to": "nobody", "variables": {"name": "A"}}]}, "no_valid_recipients", "recipients"),
        ({"launch": "yes"}, "invalid_type", "launch"),
        ({"launch": True}, "no_recipients", "launch"),
        (
            {"text": "{{ name | date: '%' }}", "subject": "{{ name.a.b | plus: 1 }}{{ x }}", "recipients": people(1)},
            "undefined_variable",
            "variables",
        ),
    ],
)
def test_bad_input_is_a_400_and_nothing_is_stored(
    blasts: Blasts, change: dict[str, Any], code: str, field: str
) -> None:
    error = refused(blasts.create(key="k", **change), 400, code, field)
    assert "@" not in error["message"].replace("local@domain", "").replace("the @ ", "").replace("; @", "")
    for model in (Blast, Send, Content, IdempotencyKey, BlastReject, BlastUpload):
        assert not model.objects.exists()


def test_a_template_that_works_for_no_recipient(blasts: Blasts) -> None:
    refused(
        blasts.create(subject="{{ name }}", recipients=[{"to": "a@example.org", "variables": {"name": " "}}] * 3),
        400,
        "rendered_empty_subject",
        "subject",
    )
    assert not Blast.objects.exists()


def test_from_outside_the_sender_domains(blasts: Blasts) -> None:
    refused(blasts.create(from_="a@other.example"), 403, "sender_domain_not_allowed", "from")
    assert not Blast.objects.exists()


def test_bodies(blasts: Blasts) -> None:
    refused(blasts.post(body=b"{"), 400, "invalid_json")
    refused(blasts.post(body=b""), 400, "invalid_json")
    large = b'{"recipients": "' + b"x" * MAX_BODY + b'"}'
    refused(blasts.post(body=large), 413, "body_too_large")
    assert f"{MAX_BODY:,}" in error_of(blasts.post(body=large))["message"]
    # Above what a send may have, below what a blast may.
    assert blasts.create(recipients=people(20_000)).json()["planned"] == 20_000


def test_more_recipients_than_a_request_may_have(blasts: Blasts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_RECIPIENTS", 5)
    refused(blasts.create(recipients=people(6), launch=True), 413, "too_many_recipients", "recipients")
    assert not Blast.objects.exists()
    assert blasts.create(recipients=people(5)).status_code == 201


def test_a_long_list_in_a_request_counts_as_an_upload(blasts: Blasts) -> None:
    """It takes as long as one, and the login codes of others need the threads."""
    long = [{"to": f"a{i}@x.org", "variables": {"name": "x" * 200}} for i in range(5_000)]
    with slot_of(blasts.speaker.tenant.pk), slot_of(blasts.speaker.tenant.pk):
        refused(blasts.create(recipients=long), 429, "too_many_uploads")
        assert blasts.create(recipients=people(5)).status_code == 201
    assert blasts.create(recipients=long).status_code == 201


def test_a_body_of_nothing_but_lists(blasts: Blasts) -> None:
    """Two characters each, and a hundred bytes of memory."""
    body = b'{"recipients":[' + b"[]," * 500_000 + b"[]]}"
    answer = blasts.speaker.client.post(URL, body, content_type="application/json", headers=blasts.speaker.headers())
    assert "objects and lists" in refused(answer, 400, "invalid_json")["message"]


def test_the_same_key_answers_the_same(blasts: Blasts) -> None:
    first = blasts.create(key="spring", recipients=people(2), launch=True)
    again = blasts.create(key="spring", recipients=people(2), launch=True, name=None)
    assert (again.status_code, again.content) == (201, first.content)
    assert ("Idempotent-Replayed" in first, again["Idempotent-Replayed"]) == (False, "true")
    assert (Blast.objects.count(), Send.objects.count()) == (1, 2)


def test_a_replay_does_not_ask_for_the_hour(blasts: Blasts) -> None:
    """What was made is answered as it was, also when it could not be made today."""
    soon = (timezone.now() + timedelta(seconds=1)).isoformat()
    first = blasts.create(key="k", expires_at=soon)
    SenderDomain.objects.all().delete()
    time.sleep(1)
    assert blasts.create(key="k", expires_at=soon).content == first.content
    refused(blasts.create(key="other", expires_at=soon), 403, "sender_domain_not_allowed", "from")


@pytest.mark.parametrize(
    "other",
    [{"name": "x"}, {"recipients": people(1)}, {"recipients": people(2), "launch": True}, {"recipients": people(3)}],
)
def test_the_same_key_for_another_blast(blasts: Blasts, other: dict[str, Any]) -> None:
    blasts.made(key="k", recipients=people(2))
    refused(blasts.create(key="k", **other), 409, "idempotency_key_reused")
    assert Blast.objects.count() == 1


def test_a_bad_key(blasts: Blasts) -> None:
    refused(blasts.create(key="x" * 256), 400, "invalid_idempotency_key", "idempotency_key")


def test_steps(blasts: Blasts) -> None:
    blast = blasts.made(recipients=people(2))
    states = []
    for step in ("launch", "pause", "pause", "resume", "cancel", "cancel"):
        answer = blasts.post(f"/{blast}/{step}")
        assert answer.status_code == 200, answer.content
        assert answer.json() == blasts.shown(blast)
        states.append(answer.json()["state"])
    assert states == ["running", "paused", "paused", "running", "cancelled", "cancelled"]


@pytest.mark.parametrize(
    ("state", "step", "code"),
    [
        ("planning", "pause", "blast_state"),
        ("planning", "resume", "blast_state"),
        ("running", "launch", "blast_launched"),
        ("paused", "launch", "blast_launched"),
        ("finished", "launch", "blast_launched"),
        ("cancelled", "launch", "blast_cancelled"),
        ("finished", "cancel", "blast_state"),
        ("finished", "pause", "blast_state"),
        ("cancelled", "resume", "blast_state"),
    ],
)
def test_steps_out_of_order(blasts: Blasts, state: str, step: str, code: str) -> None:
    blast = blasts.made(recipients=people(1))
    Blast.objects.update(state=state)
    refused(blasts.post(f"/{blast}/{step}"), 409, code)
    assert Blast.objects.get().state == state


def test_launch_of_an_empty_blast(blasts: Blasts) -> None:
    blast = blasts.made()
    refused(blasts.post(f"/{blast}/launch"), 400, "no_valid_recipients")
    assert blasts.shown(blast)["state"] == "planning"


def test_launch_while_a_list_is_read(blasts: Blasts) -> None:
    blast = blasts.made(recipients=people(1))
    BlastUpload.objects.update(finished_at=None, lease_until=timezone.now() + timedelta(seconds=40))
    answer = blasts.post(f"/{blast}/launch")
    refused(answer, 409, "upload_in_progress")
    assert 38 <= int(answer["Retry-After"]) <= 40
    assert blasts.shown(blast)["uploading"]


def test_launch_after_the_domain_was_taken_away(blasts: Blasts) -> None:
    blast = blasts.made(recipients=people(1))
    SenderDomain.objects.all().delete()
    refused(blasts.post(f"/{blast}/launch"), 403, "sender_domain_not_allowed", "from")


def test_tenants_are_apart(blasts: Blasts, other: Blasts) -> None:
    blast = blasts.made(recipients=people(1))
    for pk in (blast, str(uuid4()), "x", f"{blast}x", "%00"):
        for path in (f"/{pk}", f"/{pk}/rejected"):
            refused(other.get(path), 404, "unknown_blast")
        for step in ("launch", "pause", "resume", "cancel"):
            refused(other.post(f"/{pk}/{step}"), 404, "unknown_blast")
        refused(other.upload(pk, b"to,name\na@example.org,A\n"), 404, "unknown_blast")
    assert other.get("").json() == {"data": [], "next_cursor": None}
    assert blasts.shown(blast)["state"] == "planning"
    assert other.create(key="k", from_="a@other.example").status_code == 201
    assert blasts.create(key="k").status_code == 201  # keys are each tenant's own


def test_a_key_is_needed(blasts: Blasts) -> None:
    blast = blasts.made()
    client = blasts.speaker.client
    for path in ("", f"/{blast}", f"/{blast}/rejected"):
        refused(client.get(URL + path), 401, "not_authenticated")
    for path in ("", f"/{blast}/recipients", f"/{blast}/launch", f"/{blast}/pause"):
        refused(client.post(URL + path, {}, content_type="application/json"), 401, "not_authenticated")


def test_methods(blasts: Blasts) -> None:
    blast = blasts.made()
    for path in (f"/{blast}/recipients", f"/{blast}/launch"):
        refused(blasts.get(path), 405, "method_not_allowed")
    refused(blasts.post(f"/{blast}"), 405, "method_not_allowed")


def test_list(blasts: Blasts) -> None:
    made = [blasts.made(name=str(n), recipients=people(n + 1)) for n in range(5)][::-1]
    first = blasts.get("?limit=2").json()
    assert [b["id"] for b in first["data"]] == made[:2]
    assert first["data"][0] == blasts.shown(made[0])
    second = blasts.get(f"?limit=3&cursor={first['next_cursor']}").json()
    assert [b["id"] for b in second["data"]] == made[2:]
    assert second["next_cursor"] is None
    assert [b["planned"] for b in blasts.get("").json()["data"]] == [5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("limit=0", "invalid_limit", "limit"),
        ("limit=101", "invalid_limit", "limit"),
        ("limit=x", "invalid_limit", "limit"),
        ("limit=1&limit=2", "repeated_parameter", "limit"),
        ("cursor=x", "invalid_cursor", "cursor"),
        ("page=2", "unknown_parameter", "page"),
    ],
)
def test_list_with_bad_parameters(blasts: Blasts, query: str, code: str, field: str) -> None:
    refused(blasts.get(f"?{query}"), 400, code, field)


def test_a_cursor_of_another_tenant(blasts: Blasts, other: Blasts) -> None:
    for _ in range(2):
        blasts.made()
    cursor = blasts.get("?limit=1").json()["next_cursor"]
    refused(other.get(f"?cursor={cursor}"), 400, "invalid_cursor", "cursor")


def test_rate_eta_and_lane(blasts: Blasts) -> None:
    blast = make_blast(blasts.speaker.tenant, 100)
    now = timezone.now()
    Blast.objects.update(launched_at=now - timedelta(minutes=5))
    ids = list(Send.objects.values_list("id", flat=True))
    Send.objects.filter(pk__in=ids[:60]).update(status="sent", accepted_at=now)
    Send.objects.filter(pk__in=ids[60:62]).update(status="ambiguous", batch_id=ids[0])
    body = blasts.shown(str(blast.pk))
    assert 1 <= body["rate_per_second"] <= 1.1
    assert 35 <= body["eta_seconds"] <= 38
    assert (body["counts"]["sent"], body["unresolved"]) == (60, 2)
    Blast.objects.update(
        isolated=True, hold_code="domain", hold_detail="not verified", held_until=now + timedelta(minutes=9)
    )
    body = blasts.shown(str(blast.pk))
    assert body["lane"] == {
        "isolated": True,
        "held": {"code": "domain", "detail": "not verified", "until": (now + timedelta(minutes=9)).isoformat()},
    }
    assert body["eta_seconds"] is None
    Blast.objects.update(hold_code="", state="paused")
    assert blasts.shown(str(blast.pk))["eta_seconds"] is None
    Send.objects.update(status="cancelled")
    Blast.objects.update(state="finished", finished_at=now)
    assert blasts.shown(str(blast.pk))["eta_seconds"] == 0


def test_a_look_costs_one_statement_however_large_the_blast(blasts: Blasts, monkeypatch: pytest.MonkeyPatch) -> None:
    make_blast(blasts.speaker.tenant, 10)
    large = make_blast(blasts.speaker.tenant, 20_000)
    fold_deltas()
    statements: list[str] = []
    run = LedgerCursor.all
    monkeypatch.setattr(
        LedgerCursor, "all", lambda self, sql, *rest: (statements.append(sql), run(self, sql, *rest))[1]
    )
    with CaptureQueriesContext(connection) as queries:
        assert blasts.shown(str(large.pk))["counts"]["queued"] == 20_000
        assert len(blasts.get("?limit=100").json()["data"]) == 2
    assert len(statements) == 2
    assert "messaging_sends" not in "".join(statements)
    assert not [q for q in queries.captured_queries if "messaging_sends" in q["sql"]]
