"""GET sends: pages, filters, cursors, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from core.security.ids import new_id
from messaging.api.cursor import read_cursor, write_cursor
from messaging.domain.errors import InvalidInput
from messaging.domain.lifecycle import SendStatus
from messaging.ledger import listing
from messaging.models import Blast, Send
from tests.factories import insert_raw, make_blast
from tests.messaging.tenant_rig import Speaker, error_of, make_tenant


def pages(speaker: Speaker, at_most: int = 50, **query: Any) -> list[list[str]]:
    """All pages to the end: ids."""
    found: list[list[str]] = []
    for _ in range(at_most):
        body = get(speaker, **query)
        found.append([send["id"] for send in body["data"]])
        if body["next_cursor"] is None:
            return found
        query["cursor"] = body["next_cursor"]
    raise AssertionError(f"no end after {at_most} pages")


def ids(speaker: Speaker, **query: Any) -> list[str]:
    return [pk for page in pages(speaker, **query) for pk in page]


def ask(speaker: Speaker, **query: Any) -> Any:
    return speaker.client.get(f"/v1/messaging/sends?{urlencode(query, doseq=True)}", headers=speaker.headers())


def get(speaker: Speaker, **query: Any) -> Any:
    answer = ask(speaker, **query)
    assert answer.status_code == 200, answer.content
    assert answer["Cache-Control"] == "no-store"
    assert answer.json().keys() == {"data", "next_cursor"}
    return answer.json()


def newest_first(**where: Any) -> list[str]:
    return [str(pk) for pk in Send.objects.filter(**where).order_by("-id").values_list("id", flat=True)]


def set_status(sends: list[str], status: str) -> None:
    Send.objects.filter(pk__in=sends).update(status=status, accepted_at=timezone.now(), batch_id=new_id())


def test_nothing_yet(speaker: Speaker) -> None:
    assert get(speaker) == {"data": [], "next_cursor": None}


def test_newest_first_in_the_shape_of_one_send(speaker: Speaker) -> None:
    sent = [speaker.send(to=f"user{i}@example.org").json()["id"] for i in range(3)]
    found = get(speaker)
    assert [send["id"] for send in found["data"]] == sent[::-1]
    assert found["data"] == [speaker.get(pk).json() for pk in sent[::-1]]
    assert found["next_cursor"] is None
    assert "@" not in json.dumps(found)


def test_pages_hold_every_send_once(speaker: Speaker) -> None:
    insert_raw(speaker.tenant, 7)
    insert_raw(speaker.tenant, 7, category="transactional")
    make_blast(speaker.tenant, 7)
    found = pages(speaker, limit=5)
    assert [len(page) for page in found] == [5, 5, 5, 5, 1]
    assert [pk for page in found for pk in page] == newest_first()


@pytest.mark.parametrize("count", [1, 49, 50, 51, 100, 101])
def test_default_and_largest_page(speaker: Speaker, count: int) -> None:
    insert_raw(speaker.tenant, count)
    assert [len(page) for page in pages(speaker)] == [
        n for n in (min(count, 50), min(count - 50, 50), count - 100) if n > 0
    ]
    assert len(get(speaker, limit=100)["data"]) == min(count, 100)
    assert (get(speaker, limit=100)["next_cursor"] is None) == (count <= 100)


def test_sends_that_come_while_one_pages_do_not_move_the_pages(speaker: Speaker) -> None:
    insert_raw(speaker.tenant, 6)
    before = newest_first()
    first = get(speaker, limit=3)
    insert_raw(speaker.tenant, 3)
    set_status(before[3:], "sent")
    second = get(speaker, limit=3, cursor=first["next_cursor"])
    assert [send["id"] for send in second["data"]] == before[3:]
    assert [send["status"] for send in second["data"]] == ["sent"] * 3


def test_nobody_sees_the_sends_of_another(speaker: Speaker) -> None:
    other = Speaker.of(make_tenant("other", "other.example"))
    theirs = make_blast(other.tenant, 5)
    sent = other.send(from_="other@other.example", to="ada@example.org")
    assert sent.status_code == 202
    mine = speaker.send(to="ada@example.org").json()["id"]
    assert ids(speaker) == [mine]
    assert ids(speaker, recipient="ada@example.org") == [mine]
    for status in SendStatus:
        assert ids(speaker, status=status) == ([mine] if status == "queued" else [])
    assert error_of(ask(speaker, blast=theirs.pk))["code"] == "unknown_blast"


@pytest.mark.parametrize("status", list(SendStatus))
def test_filter_by_status(speaker: Speaker, status: str) -> None:
    insert_raw(speaker.tenant, 20)
    insert_raw(speaker.tenant, 20, category="product")
    make_blast(speaker.tenant, 20)
    everything = newest_first()
    chosen = everything[3:50:3]
    set_status(everything, "sent" if status != "sent" else "queued")
    set_status(chosen, status)
    if status == "sending":
        open_batch(chosen)
    assert ids(speaker, status=status, limit=7) == chosen
    assert ids(speaker, status=status, category="product", limit=3) == [
        pk for pk in newest_first(category="product") if pk in chosen
    ]


def open_batch(sends: list[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO messaging_batches (id, provider, channel, rail, state, send_ids, digest, idempotency_key,"
            " rendered_at, attempts) VALUES (%s, 'resend', 'email', 'marketing', 'claimed', %s::uuid[], '', '', now(), 1)",
            [new_id(), sends],
        )


@pytest.mark.parametrize("category", ["transactional", "product", "marketing"])
def test_filter_by_category(speaker: Speaker, category: str) -> None:
    for kind in ("transactional", "product", "marketing"):
        insert_raw(speaker.tenant, 5, category=kind)
    assert ids(speaker, category=category, limit=2) == newest_first(category=category)


def test_filter_by_blast(speaker: Speaker) -> None:
    first, second = make_blast(speaker.tenant, 5), make_blast(speaker.tenant, 5)
    insert_raw(speaker.tenant, 5)
    for blast in (first, second):
        assert ids(speaker, blast=blast.pk, limit=2) == newest_first(blast=blast)
        assert ids(speaker, blast=str(blast.pk).upper(), status="queued", limit=2) == newest_first(blast=blast)
        assert ids(speaker, blast=blast.pk, status="sent") == []
        assert ids(speaker, blast=blast.pk, category="product") == []
    Blast.objects.filter(pk=first.pk).update(launched_at=timezone.now())
    assert ids(speaker, blast=first.pk) == newest_first(blast=first)


def test_filter_by_recipient(speaker: Speaker) -> None:
    blasts = [make_blast(speaker.tenant, 3) for _ in range(3)]
    mine = [speaker.send(to=to).json()["id"] for to in ("Ada <ada@example.org>", "ADA@Example.org", "bob@example.org")]
    mark = Send.objects.get(pk=mine[0]).fingerprint
    marked = [newest_first(blast=blast)[1] for blast in blasts]
    Send.objects.filter(pk__in=marked).update(fingerprint=bytes(mark))
    expected = [mine[1], mine[0], *marked[::-1]]
    for limit in (1, 2, 5):
        assert ids(speaker, recipient="ada@example.org", limit=limit) == expected
    assert ids(speaker, recipient="Somebody <Ada@EXAMPLE.org>") == expected
    assert ids(speaker, recipient="eve@example.org") == []
    assert ids(speaker, recipient="ada@example.org", blast=blasts[1].pk, limit=1) == [marked[1]]
    assert ids(speaker, recipient="ada@example.org", category="marketing") == marked[::-1]
    set_status([mine[0], marked[0]], "sent")
    assert ids(speaker, recipient="ada@example.org", status="sent", limit=1) == [mine[0], marked[0]]


def test_filter_by_time(speaker: Speaker) -> None:
    sends = [speaker.send(to=f"user{i}@example.org").json() for i in range(4)]
    moments = [datetime.fromisoformat(send["created_at"]) for send in sends]
    names = [send["id"] for send in sends]
    after, before = moments[1].isoformat(), moments[3].isoformat()
    assert ids(speaker, created_after=after) == [names[3], names[2], names[1]]
    assert ids(speaker, created_before=before) == [names[2], names[1], names[0]]
    for more in ({}, {"status": "queued"}, {"category": "transactional"}):
        assert ids(speaker, created_after=after, created_before=before, limit=1, **more) == [names[2], names[1]]
    assert ids(speaker, recipient="user1@example.org", created_after=after, created_before=before) == [names[1]]
    assert ids(speaker, recipient="user0@example.org", created_after=after) == []


def test_the_databases_time_counts_and_not_that_of_the_id(speaker: Speaker) -> None:
    """A host's clock may be some seconds off."""
    pk = speaker.send().json()["id"]
    at = timezone.now() - listing.SLACK + timedelta(seconds=1)
    Send.objects.filter(pk=pk).update(created_at=at)
    assert ids(speaker, created_after=at.isoformat(), created_before=(at + timedelta(microseconds=1)).isoformat()) == [
        pk
    ]
    assert ids(speaker, created_before=at.isoformat()) == []


def test_a_page_that_looked_at_enough_is_short_and_goes_on(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    make_blast(speaker.tenant, 30)
    blast = make_blast(speaker.tenant, 3)
    Blast.objects.update(created_at=timezone.now())
    make_blast(speaker.tenant, 30)
    wanted = newest_first(blast=blast)
    for statements in (listing.ANY_STATUS, listing.ONE_STATUS):
        for category, sql in statements.items():
            monkeypatch.setitem(statements, category, sql.replace(str(listing.SCAN), "10"))
    found = pages(speaker, blast=blast.pk)
    assert [pk for page in found for pk in page] == wanted
    assert [len(page) for page in found] == [0, 0, 0, 3, 0, 0, 0]
    set_status(newest_first(), "sent")
    assert len(pages(speaker, blast=blast.pk, status="sent")) == 7
    assert [len(page) for page in pages(speaker, limit=10)] == [10, 10, 10, 10, 10, 10, 3]


def test_a_recipient_is_looked_for_in_some_blasts_a_page(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    single = speaker.send(to="ada@example.org", category="marketing").json()["id"]
    mark = bytes(Send.objects.get().fingerprint)
    blasts = [make_blast(speaker.tenant, 1) for _ in range(10)]
    last = speaker.send(to="ada@example.org", category="marketing").json()["id"]
    Send.objects.filter(blast__in=[blasts[2], blasts[7]]).update(fingerprint=mark)
    monkeypatch.setattr(listing, "RECIPIENT", listing.RECIPIENT.replace(f" {listing.BLASTS}", " 3"))
    found = pages(speaker, recipient="ada@example.org")
    assert found == [[last, *newest_first(blast=blasts[7])], [], newest_first(blast=blasts[2]), [single]]
    assert ids(speaker, recipient="ada@example.org", limit=1) == [pk for page in found for pk in page]


REFUSED: dict[str, tuple[list[tuple[str, str]], str, str]] = {
    "unknown parameter": ([("colour", "red")], "unknown_parameter", "colour"),
    "unknown parameter with odd characters": ([("co\x00l\nour", "red")], "unknown_parameter", "co?l?our"),
    "offset": ([("offset", "10")], "unknown_parameter", "offset"),
    "nameless parameter": ([("", "1")], "unknown_parameter", "(empty)"),
    "parameter twice": ([("status", "sent"), ("status", "sent")], "repeated_parameter", "status"),
    "limit of nothing": ([("limit", "")], "invalid_limit", "limit"),
    "limit of zero": ([("limit", "0")], "invalid_limit", "limit"),
    "negative limit": ([("limit", "-1")], "invalid_limit", "limit"),
    "limit above the largest": ([("limit", "101")], "invalid_limit", "limit"),
    "limit of thousands of digits": ([("limit", "9" * 5000)], "invalid_limit", "limit"),
    "limit that is no number": ([("limit", "ten")], "invalid_limit", "limit"),
    "limit in other digits": ([("limit", "١٠")], "invalid_limit", "limit"),
    "limit with a sign": ([("limit", "+5")], "invalid_limit", "limit"),
    "fraction": ([("limit", "5.0")], "invalid_limit", "limit"),
    "unknown status": ([("status", "delivered")], "unknown_status", "status"),
    "status in another case": ([("status", "SENT")], "unknown_status", "status"),
    "empty status": ([("status", "")], "unknown_status", "status"),
    "NUL in the status": ([("status", "sent\x00")], "unknown_status", "status"),
    "unknown category": ([("category", "otp")], "unknown_category", "category"),
    "blast that is no id": ([("blast", "spring")], "invalid_id", "blast"),
    "blast without dashes": ([("blast", "0" * 32)], "invalid_id", "blast"),
    "unknown blast": ([("blast", str(uuid4()))], "unknown_blast", "blast"),
    "recipient that is no address": ([("recipient", "ada")], "invalid_address", "recipient"),
    "empty recipient": ([("recipient", "")], "invalid_address", "recipient"),
    "recipients": ([("recipient", "a@b.org, c@d.org")], "invalid_address", "recipient"),
    "NUL in the recipient": ([("recipient", "a\x00@b.org")], "header_injection", "recipient"),
    "recipient of megabytes": ([("recipient", "a" * 100_000 + "@b.org")], "address_too_long", "recipient"),
    "time without an offset": ([("created_after", "2030-01-31T09:00:00")], "invalid_time", "created_after"),
    "time that is none": ([("created_before", "yesterday")], "invalid_time", "created_before"),
    "time whose plus became a space": (
        [("created_after", "2030-01-31T09:00:00 01:00")],
        "invalid_time",
        "created_after",
    ),
    "year that no mail is of": ([("created_before", "9999-01-01T00:00:00Z")], "invalid_time", "created_before"),
    "empty range": (
        [("created_after", "2030-01-01T00:00:00Z"), ("created_before", "2030-01-01T01:00:00+01:00")],
        "empty_range",
        "created_before",
    ),
    "empty cursor": ([("cursor", "")], "invalid_cursor", "cursor"),
    "cursor of another kind": ([("cursor", "2")], "invalid_cursor", "cursor"),
    "cursor of the right form": ([("cursor", "A" * 43)], "invalid_cursor", "cursor"),
    "cursor of megabytes": ([("cursor", "A" * 1_000_000)], "invalid_cursor", "cursor"),
    "an id as cursor": ([("cursor", str(uuid4()))], "invalid_cursor", "cursor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(speaker: Speaker, name: str) -> None:
    query, code, field = REFUSED[name]
    answer = speaker.client.get(f"/v1/messaging/sends?{urlencode(query)}", headers=speaker.headers())
    error = error_of(answer)
    assert (answer.status_code, error["code"], error["field"]) == (400, code, field), error
    assert "ada" not in error["message"]


def test_bytes_that_are_no_text(speaker: Speaker) -> None:
    answer = speaker.client.get("/v1/messaging/sends?status=%ff%fe", headers=speaker.headers())
    assert (answer.status_code, error_of(answer)["code"]) == (400, "unknown_status")


def test_without_a_key(speaker: Speaker) -> None:
    answer = speaker.client.get("/v1/messaging/sends?limit=0")
    assert (answer.status_code, error_of(answer)["code"]) == (401, "not_authenticated")


class TestCursor:
    @pytest.fixture
    def cursor(self, speaker: Speaker) -> str:
        insert_raw(speaker.tenant, 3)
        return str(get(speaker, limit=1, status="queued")["next_cursor"])

    def refused(self, answer: Any) -> None:
        assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_cursor")

    def test_another_size_of_page_is_fine(self, speaker: Speaker, cursor: str) -> None:
        assert len(get(speaker, cursor=cursor, status="queued", limit=2)["data"]) == 2

    def test_other_filters(self, speaker: Speaker, cursor: str) -> None:
        for query in ({}, {"status": "sent"}, {"status": "queued", "category": "marketing"}):
            self.refused(ask(speaker, cursor=cursor, **query))

    def test_another_tenant(self, speaker: Speaker, cursor: str) -> None:
        other = Speaker.of(make_tenant("other", "other.example"))
        self.refused(ask(other, cursor=cursor, status="queued"))

    def test_every_changed_character(self, speaker: Speaker, cursor: str) -> None:
        for i in range(len(cursor) - 1):  # two bits of the last one mean nothing
            changed = cursor[:i] + ("B" if cursor[i] != "B" else "C") + cursor[i + 1 :]
            self.refused(ask(speaker, cursor=changed, status="queued"))
        for changed in (cursor[:-1], cursor + "A", cursor + "=", " " + cursor):
            self.refused(ask(speaker, cursor=changed, status="queued"))

    def test_another_list(self) -> None:
        position = new_id()
        cursor = write_cursor(position, of="sends", tenant=1, filters={"a": "b"})
        assert read_cursor(cursor, of="sends", tenant=1, filters={"a": "b"}) == position
        with pytest.raises(InvalidInput):
            read_cursor(cursor, of="blasts", tenant=1, filters={"a": "b"})

    def test_another_key_of_the_server(self, speaker: Speaker, cursor: str, settings: Any) -> None:
        settings.SECRET_KEY = "another"
        self.refused(ask(speaker, cursor=cursor, status="queued"))

    def test_two_spellings_of_a_filter_are_one(self, speaker: Speaker) -> None:
        insert_raw(speaker.tenant, 3)
        since = datetime(2020, 1, 1, 12, tzinfo=UTC)
        cursor = get(speaker, limit=1, created_after=since.isoformat())["next_cursor"]
        assert len(get(speaker, cursor=cursor, created_after="2020-01-01T13:00:00+01:00")["data"]) == 2
