"""Reading NDJSON: what it takes in memory is bounded, whatever stands in a line. No database."""

from __future__ import annotations

import io
import json

from messaging.planner.lines import MAX_RECORD
from messaging.planner.ndjson_source import NdjsonSource
from messaging.planner.rows import CHUNK_SIZE, Recipient, chunks

NAME = frozenset({"name"})


def line(number: int, value: object) -> bytes:
    row = {"to": f"person{number}@example.org", "variables": {"name": value}}
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def test_chunks_are_bounded_by_what_their_values_take() -> None:
    """An empty list is two characters and some 60 bytes; so is a number of three."""
    for value in ([[]] * 2_000, [1.5] * 2_000, [{}] * 2_000):
        rows = list(NdjsonSource(io.BytesIO(b"".join(line(i, value) for i in range(200)))).rows(NAME))
        assert all(isinstance(row, Recipient) and row.size > 64 * 2_000 for row in rows)
        assert max(len(chunk) for chunk in chunks(rows)) <= CHUNK_SIZE // (64 * 2_000) + 1


def test_long_lines_are_not_all_looked_at_beforehand() -> None:
    file = io.BytesIO(line(1, [[]] * 20_000) * 100)
    source = NdjsonSource(file)
    assert source.names == NAME
    assert file.tell() < 1_000_000 + 2 * MAX_RECORD
    assert len(list(source.rows(NAME))) == 100


def test_every_line_is_a_row_once_also_those_looked_at() -> None:
    file = io.BytesIO(b"".join(line(i, "x") for i in range(250)))
    assert [row.line for row in NdjsonSource(file).rows(NAME)] == list(range(1, 251))
