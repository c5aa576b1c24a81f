"""POST blasts/{id}/recipients: CSV, NDJSON, gzip; what is in a list, and what is rejected of it."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from messaging.api.blasts import rejected
from messaging.models import BlastReject
from tests.messaging.api.blasts.rig import CSV, NDJSON, Blasts, assert_adds_up, csv_of, ndjson, people, recipients, told


def test_csv(blasts: Blasts) -> None:
    blast = blasts.made()
    answer = blasts.upload(blast, b'to,name,unused\nAda <ada@x.org>,Ada,1\nbob@y.org,"Bob, B",2\n')
    assert answer.json() == {
        "blast_id": blast,
        "upload": 1,
        "rows": 2,
        "added": 2,
        "duplicates": 0,
        "rejected": 0,
        "state": "planning",
    }
    assert recipients() == [("Ada <ada@x.org>", {"name": "Ada"}), ("bob@y.org", {"name": "Bob, B"})]
    shown = blasts.shown(blast)
    assert (shown["rows"], shown["planned"], shown["counts"]["queued"], shown["uploads"]) == (2, 2, 2, 1)
    assert not shown["uploading"]
    assert_adds_up(blast)


def test_ndjson(blasts: Blasts) -> None:
    blast = blasts.made(text="{{ user.name }} {{ n | default: 1 }}")
    rows = [{"to": "a@x.org", "variables": {"user": {"name": "Ä"}, "n": 2, "unused": 3}}, b"", b"  "]
    assert told(blasts.upload(blast, b"\xef\xbb\xbf" + ndjson(*rows, people(1)[0]), NDJSON)) == (1, 2, 1, 0, 1)
    assert recipients() == [("a@x.org", {"user": {"name": "Ä"}, "n": 2})]
    assert [row[:3] for row in blasts.rejected(blast)[1:]] == [["1", "4", "undefined_variable"]]


@pytest.mark.parametrize("kind", [CSV, NDJSON])
def test_gzip(blasts: Blasts, kind: str) -> None:
    blast = blasts.made()
    plain = csv_of(3) if kind == CSV else ndjson(*people(3))
    # Two members, as tools that pack in parallel write them.
    packed = gzip.compress(plain[:50]) + gzip.compress(plain[50:])
    assert told(blasts.upload(blast, packed, kind, Content_Encoding="gzip")) == (1, 3, 3, 0, 0)


@pytest.mark.parametrize("kind", ["text/csv; charset=UTF-8", "TEXT/CSV", 'text/csv;charset="us-ascii"; header=present'])
def test_content_types(blasts: Blasts, kind: str) -> None:
    assert told(blasts.upload(blasts.made(), csv_of(1), kind))[1] == 1


def test_launch(blasts: Blasts, django_capture_on_commit_callbacks: Any) -> None:
    blast = blasts.made()
    with django_capture_on_commit_callbacks() as tickets:
        answer = blasts.upload(blast, csv_of(2), query="?launch=true")
    assert (answer.json()["state"], len(tickets)) == ("running", 1)
    assert blasts.shown(blast)["state"] == "running"


def test_lists_append_and_add_nobody_twice(blasts: Blasts) -> None:
    blast = blasts.made(recipients=people(2))
    assert told(blasts.upload(blast, csv_of(4, start=1), query="?launch=false")) == (2, 4, 3, 1, 0)
    assert told(blasts.upload(blast, csv_of(4, start=1))) == (3, 4, 0, 4, 0)
    assert told(blasts.upload(blast, ndjson(*people(7)), NDJSON)) == (4, 7, 2, 5, 0)
    shown = blasts.shown(blast)
    assert [shown[n] for n in ("uploads", "rows", "planned", "duplicates", "rejected")] == [4, 17, 7, 10, 0]
    assert assert_adds_up(blast).planned == 7


def test_rejected_rows_are_numbered_by_upload(blasts: Blasts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected, "PAGE", 2)
    blast = blasts.made()
    blasts.upload(blast, b"to,name\nbad,A\na@x.org,A\nworse,A\n")
    blasts.upload(blast, b"to,name\nbad,A\nb@x.org,A\n" + b"bad,A\n" * 3)
    rows = blasts.rejected(blast)
    assert rows[0] == ["upload", "line", "code", "reason"]
    assert [tuple(row[:3]) for row in rows[1:]] == [
        *(("1", str(line), "invalid_address") for line in (2, 4)),
        *(("2", str(line), "invalid_address") for line in (2, 4, 5, 6)),
    ]
    assert "bad" not in "".join(row[3] for row in rows)
    assert_adds_up(blast)


def test_no_rejected_rows(blasts: Blasts) -> None:
    assert blasts.rejected(blasts.made()) == [["upload", "line", "code", "reason"]]


def test_100_columns(blasts: Blasts) -> None:
    blast = blasts.made(text="{{ c7 }} {{ c99 }}")
    header = ",".join(["to", *(f"c{i}" for i in range(1, 100))])
    row = ",".join(["a@x.org", *(str(i) for i in range(1, 100))])
    assert told(blasts.upload(blast, f"{header}\n{row}\n".encode()))[2] == 1
    assert recipients() == [("a@x.org", {"c7": "7", "c99": "99"})]


@pytest.mark.parametrize("kind", [CSV, NDJSON])
def test_rows_that_cannot_be_sent_to(blasts: Blasts, kind: str) -> None:
    """A row of 1 MB, NUL bytes, half rows: rejected one by one, and the good ones around them are in."""
    blast = blasts.made()
    large = "x" * 1_000_000
    if kind == CSV:
        body = f"to,name\na@x.org,A\nb@x.org,{large}\nc@x.org,C\0\nd@x.org\ne@x.org,E\n".encode()
        codes = [("3", "csv_row_too_large"), ("4", "csv_nul"), ("5", "csv_columns")]
    else:
        body = ndjson(
            {"to": "a@x.org", "variables": {"name": "A"}},
            {"to": "b@x.org", "variables": {"name": large}},
            {"to": "c@x.org", "variables": {"name": "C\0"}},
            b'{"to": "d@x.org", "variables": {"name": "D\0"}}',
            b'{"to": "d@x.org"',
            b'{"to": "d@x.org", "to": "e@x.org"}',
            b'{"to": "d@x.org", "variables": {"name": NaN}}',
            b"[" * 50_000,
            b'{"to": "d@x.org", "variables": {"name": "\\ud800"}}',
            b"[1]",
            {"to": "d@x.org", "variables": {"name": "D"}, "more": 1},
            {"to": "e@x.org", "variables": {"name": "E"}},
        )
        codes = [
            ("2", "ndjson_row_too_large"),
            ("3", "invalid_variables"),
            ("4", "ndjson_invalid"),
            ("5", "ndjson_invalid"),
            ("6", "ndjson_invalid"),
            ("7", "ndjson_invalid"),
            ("8", "ndjson_invalid"),
            ("9", "invalid_variables"),
            ("10", "invalid_type"),
            ("11", "unknown_field"),
        ]
    answer = told(blasts.upload(blast, body, kind))
    assert (answer[2], answer[4]) == (2, len(codes))
    assert [(row[1], row[2]) for row in blasts.rejected(blast)[1:]] == codes
    assert [to for to, _ in recipients()] == ["a@x.org", "e@x.org"]
    assert "x.org" not in "".join(BlastReject.objects.values_list("reason", flat=True))
    assert_adds_up(blast)
