"""POST blasts/{id}/recipients: lists that are refused as a whole, each by its code, and what they leave: nothing."""

from __future__ import annotations

import gzip

import pytest

from messaging.models import BlastUpload, IdempotencyKey
from messaging.planner import fill, gunzip
from messaging.planner.rows import chunks
from tests.messaging.api.blasts.rig import CSV, NDJSON, Blasts, assert_adds_up, csv_of, ndjson, refused, told


def nothing_of(blast: str) -> None:
    """The blast is as it was made: a list that was refused left nothing."""
    found = assert_adds_up(blast)
    assert (found.state, found.rows_read) == ("planning", 0)
    assert not BlastUpload.objects.exists()
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"", "csv_empty", "csv"),
        (b"to,name\n", "csv_no_rows", "csv"),
        (b"address,name\na@x.org,A\n", "csv_no_to_column", "csv"),
        (b"to;name\na@x.org;A\n", "csv_no_to_column", "csv"),
        (b"to,to,name\na@x.org,A,B\n", "csv_column_twice", "csv"),
        (b"to\na@x.org\n", "undefined_variable", "variables"),
        (b"to,Name\na@x.org,A\n", "undefined_variable", "variables"),
        ("to,name\na@x.org,Ä\n".encode("latin-1"), "csv_encoding", "csv"),
        ("to,name\na@x.org,A\n".encode("utf-16"), "csv_encoding", "csv"),
        (b"to," + b"x" * 1_000_000 + b"\na@x.org,A\n", "csv_no_to_column", "csv"),
        (b"\0" * 1000, "csv_no_to_column", "csv"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_csv(blasts: Blasts, body: bytes, code: str, field: str) -> None:
    blast = blasts.made()
    answer = blasts.upload(blast, body, query="?launch=true", Idempotency_Key="k")
    error = refused(answer, 400, code, field)
    if code == "undefined_variable":
        assert "name" in error["message"]
    nothing_of(blast)
    # The same key for the corrected list.
    assert told(blasts.upload(blast, csv_of(1), query="?launch=true", Idempotency_Key="k"))[2] == 1


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"", "ndjson_empty", None),
        (b"\n \n", "ndjson_empty", None),
        (ndjson({"to": "a@x.org"}), "undefined_variable", "variables"),
        (ndjson({"to": "a@x.org", "variables": {"Name": 1}}), "undefined_variable", "variables"),
        ('{"to": "a@x.org", "variables": {"name": "Ä"}}\n'.encode("latin-1"), "ndjson_encoding", None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_ndjson(blasts: Blasts, body: bytes, code: str, field: str | None) -> None:
    blast = blasts.made()
    refused(blasts.upload(blast, body, NDJSON, query="?launch=true", Idempotency_Key="k"), 400, code, field)
    nothing_of(blast)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CSV, b"to,name\n" + b"bad,A\n" * 200),
        (NDJSON, b"not JSON\n" * 200),
        (NDJSON, b'["a@x.org"]\n' * 200),
        (NDJSON, ndjson({"to": "bad", "variables": {"name": "A"}})),
    ],
    ids=["csv", "no json", "no object", "no address"],
)
def test_only_bad_rows(blasts: Blasts, kind: str, body: bytes) -> None:
    """Told as an error, not launched; the reasons are kept; and the next list may come, under the same key too."""
    blast = blasts.made()
    answer = blasts.upload(blast, body, kind, query="?launch=true", Idempotency_Key="k")
    message = refused(answer, 400, "no_valid_recipients", "recipients")["message"]
    assert "line" in message
    shown = blasts.shown(blast)
    assert (shown["state"], shown["planned"], shown["rejected"]) == (
        "planning",
        0,
        body.count(b"\n") - (kind == CSV),
    )
    assert len(blasts.rejected(blast)) == shown["rejected"] + 1
    assert not IdempotencyKey.objects.exists()
    assert told(blasts.upload(blast, csv_of(2), query="?launch=true", Idempotency_Key="k"))[:3] == (2, 2, 2)
    assert_adds_up(blast)


def test_rejected_rows_are_kept_in_bounds(blasts: Blasts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes of a body make a row of the database: a list of nothing else must not fill the disk."""
    monkeypatch.setattr(fill, "MAX_REJECTED", 20)
    monkeypatch.setattr(fill, "chunks", lambda rows, **more: chunks(rows, max_rows=10, **more))
    blast = blasts.made()
    for upload in (1, 2):  # nor bit by bit
        answer = blasts.upload(blast, b"to,name\n" + b"x,A\n" * 1000, query="?launch=true", Idempotency_Key="k")
        refused(answer, 400, "too_many_rejected", "recipients")
        found = assert_adds_up(blast)
        assert (found.state, found.rejected, found.uploads.count()) == ("planning", 30, 1), upload
    good = csv_of(200) + b"x,A\n" * 100  # many, but not most
    assert told(blasts.upload(blast, good)) == (2, 300, 200, 0, 100)


def test_a_template_that_works_for_no_row(blasts: Blasts) -> None:
    blast = blasts.made(subject="{{ name }}")
    answer = blasts.upload(blast, b"to,name\n" + b"a@x.org,\n" * 20)
    refused(answer, 400, "rendered_empty_subject", "subject")
    nothing_of(blast)


@pytest.mark.parametrize(
    ("kind", "headers", "code"),
    [
        ("application/json", {}, "unsupported_media_type"),
        ("multipart/form-data; boundary=x", {}, "unsupported_media_type"),
        ("", {}, "unsupported_media_type"),
        ("text/csv; charset=iso-8859-1", {}, "unsupported_charset"),
        (CSV, {"Content_Encoding": "br"}, "unsupported_content_encoding"),
        (CSV, {"Content_Encoding": "gzip, gzip"}, "unsupported_content_encoding"),
    ],
)
def test_what_is_not_read(blasts: Blasts, kind: str, headers: dict[str, str], code: str) -> None:
    blast = blasts.made()
    refused(blasts.upload(blast, csv_of(1), kind, **headers), 415, code)
    nothing_of(blast)


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("?launch=yes", "invalid_flag", "launch"),
        ("?lunch=true", "unknown_parameter", "lunch"),
        ("?launch=true&launch=true", "repeated_parameter", "launch"),
    ],
)
def test_queries(blasts: Blasts, query: str, code: str, field: str) -> None:
    blast = blasts.made()
    refused(blasts.upload(blast, csv_of(1), query=query), 400, code, field)
    nothing_of(blast)


def test_a_bad_key(blasts: Blasts) -> None:
    answer = blasts.upload(blasts.made(), csv_of(1), Idempotency_Key="x" * 256)
    refused(answer, 400, "invalid_idempotency_key", "idempotency_key")


def test_a_bomb_is_refused(blasts: Blasts) -> None:
    """100 MB of one row in 100 kB."""
    blast = blasts.made()
    bomb = gzip.compress(b"to,name\n" + b"x" * 100_000_000)
    answer = blasts.upload(blast, bomb, query="?launch=true", Content_Encoding="gzip")
    refused(answer, 413, "gzip_ratio")
    nothing_of(blast)


def test_a_bomb_of_rows(blasts: Blasts) -> None:
    blast = blasts.made()
    bomb = gzip.compress(b"to,name\n" + b"a@x.org,A\n" * 300_000)
    error = refused(blasts.upload(blast, bomb, query="?launch=true", Content_Encoding="gzip"), 413, "gzip_ratio")
    found = assert_adds_up(blast)
    assert (found.state, found.planned) == ("planning", 1)
    assert f"{found.rows_read:,} rows" in error["message"]


def test_it_may_not_expand_without_end(blasts: Blasts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gunzip, "MAX_BYTES", 10_000)
    answer = blasts.upload(blasts.made(), gzip.compress(csv_of(1000)), Content_Encoding="gzip")
    refused(answer, 413, "gzip_too_large")


def test_a_very_regular_list_of_a_usual_size(blasts: Blasts) -> None:
    body = gzip.compress(b"to,name\n" + b"a@x.org,A\n" * 100_000)
    assert told(blasts.upload(blasts.made(), body, Content_Encoding="gzip")) == (1, 100_000, 1, 99_999, 0)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "gzip_incomplete"),
        (csv_of(3), "gzip_invalid"),
        (gzip.compress(csv_of(3))[:-1], "gzip_incomplete"),
        (gzip.compress(csv_of(3))[:30], "gzip_incomplete"),
        (gzip.compress(csv_of(3))[:-5] + b"\0\0\0\0\0", "gzip_invalid"),
        (gzip.compress(csv_of(3)) + b"rubbish", "gzip_invalid"),
    ],
    ids=["empty", "plain", "without its end", "cut", "damaged", "with a tail"],
)
def test_bad_gzip(blasts: Blasts, body: bytes, code: str) -> None:
    blast = blasts.made()
    refused(blasts.upload(blast, body, query="?launch=true", Content_Encoding="gzip"), 400, code)
    assert blasts.shown(blast)["state"] == "planning"
    assert blasts.shown(blast)["planned"] == 0
