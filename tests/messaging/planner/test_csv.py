"""Reading CSV files: what is a row, what is rejected, what refuses the whole file. No database."""

from __future__ import annotations

import io

import pytest

from messaging.domain.errors import InvalidInput
from messaging.ledger.planning import Reject
from messaging.planner import lines
from messaging.planner.csv_source import CsvSource
from messaging.planner.lines import MAX_RECORD
from messaging.planner.rows import Recipient
from tests.messaging.planner.rig import csv_file


def read(*lines: str, wanted: frozenset[str] = frozenset({"name"})) -> list[tuple[int, object]]:
    """(line, address) of good rows, (line, code) of the others."""
    rows = CsvSource(csv_file(*lines)).rows(wanted)
    return [(row.line, row.code if isinstance(row, Reject) else row.to) for row in rows]


def code_of(data: bytes) -> str:
    with pytest.raises(InvalidInput) as caught:
        list(CsvSource(io.BytesIO(data)).rows(frozenset()))
    return caught.value.code


@pytest.mark.parametrize("header", ["to,name", "TO,name", " To , name ", "\ufeffto,name", '"to","name"', "to,name,"])
def test_header(header: str) -> None:
    row = "a@x.org,Ada" + ("," if header.endswith(",") else "")
    source = CsvSource(csv_file(header, row))
    assert source.names == {"name"}
    assert list(source.rows(source.names)) == [Recipient(2, "a@x.org", {"name": "Ada"}, len(row) + 1)]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "csv_empty"),
        (b"\xef\xbb\xbf", "csv_empty"),
        (b"email,name\na@x.org,Ada\n", "csv_no_to_column"),
        (b"to;name\na@x.org;Ada\n", "csv_no_to_column"),
        (b"\nto\na@x.org\n", "csv_no_to_column"),
        (b'"to\n', "csv_no_to_column"),
        (b"x" * (MAX_RECORD + 1), "csv_no_to_column"),
        (b"to,name,name\n", "csv_column_twice"),
        (b"to,To\n", "csv_column_twice"),
        (b"to\na@x.org\nJos\xe9\n", "csv_encoding"),
        ("to\na@x.org\n".encode("utf-16"), "csv_encoding"),
        (b"to\na@x.org\n\xc3", "csv_encoding"),
    ],
)
def test_refused_files(data: bytes, code: str) -> None:
    assert code_of(data) == code


def test_no_column_named_to_says_what_to_do_and_quotes_nothing() -> None:
    with pytest.raises(InvalidInput) as caught:
        CsvSource(csv_file("ada@secret.org;Ada;to"))
    assert "commas" in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize("line", [2, 5, 40_000])
def test_wrong_encoding_names_the_line(line: int, seekable: bool) -> None:
    lines = [b"to"] + [b"a@x.org"] * 50_000
    lines[line - 1] = "é".encode("latin-1")
    file = io.BytesIO(b"\n".join(lines))
    file.seekable = lambda: seekable  # type: ignore[method-assign]
    with pytest.raises(InvalidInput) as caught:
        list(CsvSource(file).rows(frozenset()))
    assert caught.value.code == "csv_encoding"
    assert f"Line {line} " in caught.value.message


def test_character_across_two_blocks_of_the_scan() -> None:
    padding = b"to\n" + b"a@x.org\n" * ((1 << 20) // 8)
    for shift in range(4):
        data = padding + b"x" * shift + "ééé".encode()
        assert CsvSource(io.BytesIO(data)).total is not None


def test_text_files() -> None:
    source = CsvSource(io.StringIO("to,name\r\na@x.org,Ada\r\n", newline=""))
    assert [row.line for row in source.rows(source.names)] == [2]


def test_blank_lines_are_no_rows_and_lines_are_those_of_the_file() -> None:
    assert read("to,name", "", "a@x.org,A", "", "", "b@x.org,B,?", "") == [(3, "a@x.org"), (6, "csv_columns")]


def test_variables_may_have_several_lines() -> None:
    assert read("to,name", '"a@x.org","two\nlines"', "b@x.org,B") == [(2, "a@x.org"), (4, "b@x.org")]


def test_too_few_and_too_many_columns() -> None:
    assert read("to,name", "a@x.org", "b@x.org,B,C", "c@x.org,C") == [
        (2, "csv_columns"),
        (3, "csv_columns"),
        (4, "c@x.org"),
    ]


def test_nul() -> None:
    assert read("to,name", "a@x.org,A\0", "b@x.org,B") == [(2, "csv_nul"), (3, "b@x.org")]


def test_line_that_is_too_long() -> None:
    lines = ("to,name", "a@x.org," + "x" * MAX_RECORD * 3, "b@x.org,B")
    assert read(*lines) == [(2, "csv_row_too_large"), (3, "b@x.org")]


def test_stray_quotation_mark_costs_its_own_line_only() -> None:
    good = [f"p{i}@x.org,P" for i in range(20_000)]  # far more than a record may hold
    rows = read("to,name", 'a@x.org,"A', *good)
    assert rows[0] == (2, "csv_row_too_large")
    assert rows[1:] == [(3 + i, f"p{i}@x.org") for i in range(20_000)]


@pytest.mark.parametrize("follow", [[], ["b@x.org,B"], ["b@x.org,B", 'c@x.org,"C"'], ["b@x.org,B", 'c@x.org,C "c"']])
def test_stray_quotation_mark_near_the_end(follow: list[str]) -> None:
    rows = read("to,name", 'a@x.org,"A', *follow)
    assert rows[0][1] in ("csv_quotes", "csv_columns")
    assert [line for line, _ in rows] == list(range(2, 3 + len(follow)))
    assert [to for _, to in rows[1:]] == [line.partition(",")[0] for line in follow]


def test_overlong_line_inside_an_open_quotation() -> None:
    rows = read("to,name", 'a@x.org,"A', "x" * (MAX_RECORD + 5), "b@x.org,B")
    assert rows == [(2, "csv_row_too_large"), (3, "csv_row_too_large"), (4, "b@x.org")]


def test_row_that_is_too_long_over_many_lines() -> None:
    """Each line is short enough, and the quotation is closed."""
    text = ["x" * 5_000] * 20
    rows = read("to,name", f'a@x.org,"{text[0]}', *text, 'x"', "b@x.org,B")
    assert rows[0] == (2, "csv_row_too_large")
    assert rows[-1] == (24, "b@x.org")


def test_only_wanted_columns_are_read() -> None:
    source = CsvSource(csv_file("to,name,salary", "a@x.org,Ada,12"))
    [row] = source.rows(frozenset({"name"}))
    assert isinstance(row, Recipient)
    assert row.variables == {"name": "Ada"}


def test_stray_quotation_marks_cost_a_bounded_number_of_readings() -> None:
    """Each opens a record that never closes. 64 KiB behind each of 3,000 were read for every one of them; now 100 lines."""
    handed_out = 0
    real = lines.Lines.__next__

    def count(self: lines.Lines) -> str:
        nonlocal handed_out
        handed_out += 1
        return real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines.Lines, "__next__", count)
        rows = list(CsvSource(io.BytesIO(b"to,name\n" + b'a","\n' * 3_000)).rows(frozenset()))
    assert {type(row) for row in rows} == {Reject}
    assert handed_out <= 3_000 * (lines.MAX_LINES + 2)
