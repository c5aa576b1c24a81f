"""POST sends and GET sends/{id}: what is answered when all is well."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from core.db.cursor import LedgerCursor
from messaging.channels.sealing import open_recipient
from messaging.models import Send
from tests.messaging.tenant_rig import BODY, Speaker, error_of, make_tenant


def test_a_send_is_accepted_and_found_again(speaker: Speaker) -> None:
    answer = speaker.send()
    assert answer.status_code == 202, answer.content
    body = answer.json()
    assert body.keys() == {"id", "status", "channel", "category", "rail", "created_at"}
    assert (body["status"], body["channel"]) == ("queued", "email")
    assert (body["category"], body["rail"]) == ("transactional", "transactional")
    assert answer["Location"] == f"/v1/messaging/sends/{body['id']}"
    assert "Idempotent-Replayed" not in answer

    found = speaker.client.get(answer["Location"], headers=speaker.headers()).json()
    assert found == body | {
        "not_before": body["created_at"],
        "expires_at": None,
        "attempts": 0,
        "accepted_at": None,
        "provider_id": None,
        "error": None,
        "blast_id": None,
    }
    assert parse_datetime(found["created_at"]).utcoffset() is not None  # type: ignore[union-attr]


def test_every_field_reaches_the_ledger(speaker: Speaker) -> None:
    answer = speaker.send(
        channel="email",
        category="marketing",
        to="Ada <ada@example.org>",
        reply_to=["help@shop.example"],
        subject="Hello {{ name }}",
        html="<p>{{ name }}</p>",
        headers={"X-Campaign": "spring"},
        variables={"name": "Ada"},
        not_before="2026-01-01T09:00:00+01:00",
        expires_at="2090-01-01T09:00:00Z",
    )
    assert answer.status_code == 202, answer.content
    send = Send.objects.get(pk=answer.json()["id"])
    assert (send.tenant_id, send.rail, send.category) == (speaker.tenant.pk, "marketing", "marketing")
    assert open_recipient(send.pk, send.sealed) == ("Ada <ada@example.org>", {"name": "Ada"})
    assert send.expires_at is not None
    assert send.expires_at.isoformat() == "2090-01-01T09:00:00+00:00"


@pytest.mark.parametrize(
    ("category", "rail"),
    [("transactional", "transactional"), ("product", "transactional"), ("marketing", "marketing")],
)
def test_the_category_decides_the_rail(speaker: Speaker, category: str, rail: str) -> None:
    assert speaker.send(category=category).json()["rail"] == rail


def test_null_counts_as_absent(speaker: Speaker) -> None:
    answer = speaker.post(BODY | {"html": None, "not_before": None, "channel": None})
    assert answer.status_code == 202
    assert answer.json()["channel"] == "email"


def test_what_is_scheduled_waits(speaker: Speaker) -> None:
    at = (timezone.now() + timedelta(hours=1)).isoformat()
    body = speaker.send(not_before=at).json()
    assert body["status"] == "scheduled"
    assert speaker.get(body["id"]).json()["not_before"] == at


def test_a_failed_send_says_why(speaker: Speaker) -> None:
    pk = speaker.send().json()["id"]
    Send.objects.filter(pk=pk).update(status="failed", error_code="invalid_to", error_detail="no such mailbox")
    body = speaker.get(pk).json()
    assert (body["status"], body["error"]) == ("failed", {"code": "invalid_to", "detail": "no such mailbox"})


def test_a_sent_send_has_the_providers_id(speaker: Speaker) -> None:
    pk, at = speaker.send().json()["id"], timezone.now()
    Send.objects.filter(pk=pk).update(status="sent", accepted_at=at, provider_id="re_1", attempts=1)
    body = speaker.get(pk).json()
    assert (body["provider_id"], body["accepted_at"], body["attempts"]) == ("re_1", at.isoformat(), 1)


def test_no_address_and_no_content_is_ever_answered(speaker: Speaker) -> None:
    accepted = speaker.send(subject="Secret subject", text="Secret text", variables={"a": "secret value"})
    for answer in (accepted, speaker.get(accepted.json()["id"])):
        text = answer.content.decode().lower()
        assert "secret" not in text
        assert "@" not in text


def test_the_id_of_another_tenant_is_not_found(speaker: Speaker) -> None:
    other = Speaker.of(make_tenant("other", "other.example"))
    pk = speaker.send().json()["id"]
    assert speaker.get(pk).status_code == 200
    theirs, unknown = other.get(pk), other.get(uuid4())
    assert theirs.status_code == unknown.status_code == 404
    assert theirs.content == unknown.content  # nothing tells the two apart
    assert error_of(theirs)["code"] == "not_found"


@pytest.mark.parametrize(
    "raw", ["1", "x", "%00", "..", "a" * 5000, "{00000000-0000-0000-0000-000000000000}", "\N{SNOWMAN}", "null"]
)
def test_what_is_no_id_is_not_found(speaker: Speaker, raw: str) -> None:
    answer = speaker.get(raw)
    assert answer.status_code == 404
    assert error_of(answer)["code"] == "not_found"


def test_a_replay_is_the_same_answer(speaker: Speaker) -> None:
    first = speaker.post(BODY, **{"Idempotency-Key": "order-1"})
    Send.objects.update(status="sent", accepted_at=timezone.now())
    again = speaker.post(dict(reversed(BODY.items())), **{"Idempotency-Key": "order-1"})
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.content == again.content
    assert (first.get("Idempotent-Replayed"), again.get("Idempotent-Replayed")) == (None, "true")
    assert speaker.sends() == 1


def test_one_line_of_log_with_ids_only(speaker: Speaker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pk = speaker.send().json()["id"]
    lines = [record for record in caplog.records if record.getMessage() == "send_submitted"]
    assert [(r.send, r.tenant, r.rail) for r in lines] == [(pk, "shop", "transactional")]  # type: ignore[attr-defined]
    assert "@" not in caplog.text
    assert speaker.key not in caplog.text


def statements(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All statements, also those of the ledger, which go past Django's wrappers on a cursor of their own."""
    seen: list[str] = []
    for method in ("run", "all", "one"):
        original = getattr(LedgerCursor, method)

        def counted(self: LedgerCursor, sql: str, *args: Any, _original: Any = original) -> Any:
            seen.append(sql)
            return _original(self, sql, *args)

        monkeypatch.setattr(LedgerCursor, method, counted)
    with CaptureQueriesContext(connection) as captured:
        call()
    # With the savepoint, which is BEGIN and COMMIT outside of a test.
    return [query["sql"] for query in captured.captured_queries] + seen


def test_a_request_takes_a_bounded_number_of_statements(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key, sender domain, begin, content, send, commit; two more for a new content, two for an idempotency key."""
    pk = speaker.send().json()["id"]  # from here on the content is known and the bucket is cached
    keyed = {"Idempotency-Key": "order-1"}
    for expected, call in [
        (6, lambda: speaker.send(to="bob@example.org")),
        (8, lambda: speaker.send(subject="New")),
        (8, lambda: speaker.post(BODY, **keyed)),
        (5, lambda: speaker.post(BODY, **keyed)),  # the replay: claim, read
        (2, lambda: speaker.get(pk)),
        (1, lambda: speaker.get("no-id")),
    ]:
        with monkeypatch.context() as patch:
            seen = statements(call, patch)
        assert len(seen) == expected, seen
