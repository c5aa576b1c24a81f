"""POST blasts/{id}/recipients: when a list may come, when it is cut, and when it comes again."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import transaction
from django.utils import timezone

from core.models import Tenant
from messaging.domain.errors import InvalidInput, MessagingError
from messaging.ledger.uploads import open_upload
from messaging.models import Blast, BlastUpload, SenderDomain
from messaging.planner import append, fill
from messaging.planner.append import Appended, append_recipients
from messaging.planner.csv_source import CsvSource
from messaging.planner.rows import chunks
from messaging.planner.sources import Source
from messaging.services.control import cancel_blast
from tests.messaging.api.blasts.rig import Blasts, assert_adds_up, csv_of, people, recipients, refused, told


@pytest.fixture
def chunk_rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes chunks small, so that a few rows are several."""
    return lambda count: monkeypatch.setattr(fill, "chunks", lambda rows, **more: chunks(rows, max_rows=count, **more))


class Cut(io.BytesIO):
    """As `blasts_body` behaves when the connection ends before the body."""

    def __init__(self, body: bytes, at: int) -> None:
        super().__init__(body[:at])

    def readline(self, size: int = -1) -> bytes:  # type: ignore[override]
        line = super().readline(size)
        if not line.endswith(b"\n"):
            raise InvalidInput("body_incomplete", "The connection ended before the body did.")
        return line


def _append(tenant: Tenant, blast: str, file: io.BytesIO, *, launch: bool = False, key: str | None = None) -> Appended:
    @contextmanager
    def source() -> Iterator[Source]:
        yield CsvSource(_Unseekable(file))  # type: ignore[arg-type]

    return append_recipients(tenant, UUID(blast), source=source, launch=launch, idempotency_key=key)


class _Unseekable:
    def __init__(self, file: io.BytesIO) -> None:
        self.readline = file.readline


def _fails(*args: object, **kwargs: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("state", ["running", "paused", "finished", "cancelled"])
def test_a_blast_that_takes_no_more(blasts: Blasts, state: str) -> None:
    blast = blasts.made(recipients=people(1))
    Blast.objects.update(state=state)
    code = "blast_cancelled" if state == "cancelled" else "blast_launched"
    refused(blasts.upload(blast, csv_of(3)), 409, code)
    assert assert_adds_up(blast).planned == 1


def test_two_at_once(blasts: Blasts) -> None:
    blast = blasts.made()
    with transaction.atomic():
        first = open_upload(UUID(blast))
    for key in ({}, {"Idempotency_Key": "k"}):
        answer = blasts.upload(blast, csv_of(3), **key)
        refused(answer, 409, "upload_in_progress")
        assert 58 <= int(answer["Retry-After"]) <= 60
    assert BlastUpload.objects.count() == 1
    assert blasts.shown(blast)["uploading"]
    # Its reader vanished: a minute later the next list may come.
    BlastUpload.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    assert told(blasts.upload(blast, csv_of(3)))[:3] == (first.number + 1, 3, 3)


def test_the_other_one_is_told_when_it_wakes_up(blasts: Blasts, chunk_rows: Callable[[int], None]) -> None:
    """It was silent for longer than its lease, and another list was begun."""
    chunk_rows(2)
    blast = blasts.made()

    class Slow(io.BytesIO):
        def readline(self, size: int = -1) -> bytes:  # type: ignore[override]
            line = super().readline(size)
            if line.startswith(b"person150"):
                BlastUpload.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
                with transaction.atomic():
                    open_upload(UUID(blast))
            return line

    with pytest.raises(MessagingError) as caught:
        _append(blasts.speaker.tenant, blast, Slow(csv_of(200)))
    assert caught.value.code == "upload_in_progress"
    assert 0 < assert_adds_up(blast).planned <= 150


def test_cancelled_while_it_is_read(blasts: Blasts, chunk_rows: Callable[[int], None]) -> None:
    chunk_rows(2)
    blast = blasts.made()

    class Cancelling(io.BytesIO):
        def readline(self, size: int = -1) -> bytes:  # type: ignore[override]
            line = super().readline(size)
            if line.startswith(b"person150"):
                cancel_blast(UUID(blast))
            return line

    with pytest.raises(MessagingError) as caught:
        _append(blasts.speaker.tenant, blast, Cancelling(csv_of(200)), launch=True)
    assert caught.value.code == "blast_cancelled"
    assert assert_adds_up(blast).state == "cancelled"


def test_a_slow_list_is_written_as_it_comes(blasts: Blasts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("messaging.planner.rows.CHUNK_SECONDS", 0.0)
    seen: list[int] = []
    write = fill.write_chunk
    monkeypatch.setattr(fill, "write_chunk", lambda *a: (seen.append(1), write(*a))[1])
    assert told(blasts.upload(blasts.made(), csv_of(7)))[2] == 7
    assert len(seen) == 7


"""A list that ends in the middle, as its reader sees it; over a real connection in test_blasts_http."""


@pytest.mark.parametrize("key", [None, "k"])
def test_what_came_is_kept_and_counted_and_the_rest_follows(
    blasts: Blasts, chunk_rows: Callable[[int], None], key: str | None
) -> None:
    chunk_rows(10)
    blast, tenant = blasts.made(), blasts.speaker.tenant
    body = csv_of(30) + b"bad,X\n" + csv_of(270, start=30)[8:]
    with pytest.raises(InvalidInput) as caught:
        _append(tenant, blast, Cut(body, at=5000), launch=True, key=key)
    assert caught.value.code == "body_incomplete"
    found = assert_adds_up(blast)
    assert (found.state, found.rows_read) == ("planning", body[:5000].count(b"\n") - 1)  # but for the header
    assert f"{found.rows_read} rows" in caught.value.message
    assert blasts.shown(blast)["rows"] == found.rows_read
    assert not blasts.shown(blast)["uploading"]

    done = _append(tenant, blast, io.BytesIO(body), launch=True, key=key)
    again = assert_adds_up(blast)
    assert (done.state, again.planned) == ("running", 300)
    assert len({to for to, _ in recipients()}) == 300
    if key:  # the same upload, gone on with
        assert (done.upload, done.rows, done.added, done.duplicates, done.rejected) == (1, 301, 300, 0, 1)
        assert (again.rows_read, len(blasts.rejected(blast))) == (301, 2)
    else:
        assert (done.upload, done.rows, done.duplicates) == (2, 301, found.planned)


def test_another_list_under_the_key_of_a_cut_one(blasts: Blasts, chunk_rows: Callable[[int], None]) -> None:
    chunk_rows(10)
    blast, tenant = blasts.made(), blasts.speaker.tenant
    with pytest.raises(InvalidInput):
        _append(tenant, blast, Cut(csv_of(300), at=5000), key="k")
    refused(blasts.upload(blast, csv_of(300, start=1000), Idempotency_Key="k"), 409, "recipients_differ")
    assert told(blasts.upload(blast, csv_of(300, start=1000)))[2] == 300  # without it, it is a list of its own
    assert told(blasts.upload(blast, csv_of(300), Idempotency_Key="k"))[:2] == (1, 300)
    assert assert_adds_up(blast).planned == 600


def test_a_list_that_stops_being_utf8_midway(blasts: Blasts, chunk_rows: Callable[[int], None]) -> None:
    chunk_rows(50)
    blast = blasts.made()
    body = csv_of(120) + "x@x.org,Ä\n".encode("latin-1") + csv_of(100, start=500)[8:]
    error = refused(blasts.upload(blast, body, query="?launch=true"), 400, "csv_encoding", "csv")
    assert "Line 122" in error["message"]
    assert "120 rows" in error["message"]
    assert assert_adds_up(blast).state == "planning"


def test_what_is_not_an_error_of_the_list_is_left_alone(blasts: Blasts) -> None:
    blast = blasts.made()

    class Broken(io.BytesIO):
        def readline(self, size: int = -1) -> bytes:  # type: ignore[override]
            line = super().readline(size)
            if line.startswith(b"person150"):
                raise ZeroDivisionError
            return line

    with pytest.raises(ZeroDivisionError):
        _append(blasts.speaker.tenant, blast, Broken(csv_of(200)))
    assert not blasts.shown(blast)["uploading"]


def test_the_same_key_answers_the_same(blasts: Blasts) -> None:
    blast, body = blasts.made(), csv_of(3) + b"bad,A\n" + csv_of(2)[8:]
    first = blasts.upload(blast, body, query="?launch=true", Idempotency_Key="k")
    SenderDomain.objects.all().delete()  # what was allowed then is answered as it was then
    again = blasts.upload(blast, body, query="?launch=true", Idempotency_Key="k")
    assert again.status_code == 200
    assert (again.content, again["Idempotent-Replayed"]) == (first.content, "true")
    assert "Idempotent-Replayed" not in first
    assert told(first) == (1, 6, 3, 2, 1)
    assert assert_adds_up(blast).rows_read == 6


@pytest.mark.parametrize("state", ["planning", "launched"])
@pytest.mark.parametrize(
    "other",
    [csv_of(20, start=20), csv_of(19), csv_of(21), csv_of(19) + b"bad,A\n"],
    ids=["others", "one less", "one more", "one bad"],
)
def test_another_list_under_the_key_of_an_ended_one(
    blasts: Blasts, chunk_rows: Callable[[int], None], other: bytes, state: str
) -> None:
    """It was not read, and is not answered as if it had been: its people would be left out without a word."""
    chunk_rows(10)
    blast, query = blasts.made(), "?launch=true" if state == "launched" else ""
    blasts.upload(blast, csv_of(20), query=query, Idempotency_Key="k")
    error = refused(blasts.upload(blast, other, query=query, Idempotency_Key="k"), 409, "recipients_differ")
    assert "under a key of its own" in error["message"]
    found = assert_adds_up(blast)
    assert (found.rows_read, found.planned) == (20, 20)
    assert told(blasts.upload(blast, csv_of(20), query=query, Idempotency_Key="k")) == (1, 20, 20, 0, 0)


def test_a_repeated_list_is_read_to_its_end(blasts: Blasts) -> None:
    """Whoever sends all before it listens would find the connection closed; and a cut list is not known to be the same."""
    blast, tenant = blasts.made(), blasts.speaker.tenant
    _append(tenant, blast, io.BytesIO(csv_of(300)), key="k")
    whole = io.BytesIO(csv_of(300))
    assert _append(tenant, blast, whole, key="k").replayed
    assert whole.read() == b""
    with pytest.raises(InvalidInput) as caught:
        _append(tenant, blast, Cut(csv_of(300), at=5000), key="k")
    assert caught.value.code == "body_incomplete"


@pytest.mark.parametrize("other", ["blast", "launch"])
def test_the_same_key_for_something_else(blasts: Blasts, other: str) -> None:
    blast = blasts.made()
    blasts.upload(blast, csv_of(3), Idempotency_Key="k")
    answer = blasts.upload(
        blasts.made() if other == "blast" else blast,
        csv_of(3),
        query="?launch=true" if other == "launch" else "",
        Idempotency_Key="k",
    )
    refused(answer, 409, "idempotency_key_reused")
    assert blasts.shown(blast)["state"] == "planning"


def test_a_planned_blast_is_launched_with_its_own_list_only(blasts: Blasts) -> None:
    """The end of the list, the launch and the answer are one transaction."""
    blast = blasts.made()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append, "launch_blast", _fails)
        with pytest.raises(ZeroDivisionError):
            _append(blasts.speaker.tenant, blast, io.BytesIO(csv_of(3)), launch=True, key="k")
    assert (blasts.shown(blast)["planned"], blasts.shown(blast)["state"]) == (3, "planning")
    BlastUpload.objects.update(lease_until=None)
    assert told(blasts.upload(blast, csv_of(3), query="?launch=true", Idempotency_Key="k")) == (1, 3, 3, 0, 0)
    assert blasts.shown(blast)["state"] == "running"
