"""A recipient list as NDJSON: on each line an object `{"to": …, "variables": {…}}`. UTF-8; blank lines are skipped.

A line that cannot be read is rejected, and the next one is read all the same.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import IO, Any, NoReturn

from messaging.domain.errors import InvalidInput
from messaging.ledger.planning import Reject
from messaging.planner.lines import MAX_RECORD
from messaging.planner.rows import Row
from messaging.planner.sources import LOOK_AHEAD, row_of, variable_names

#: Bytes of the lines looked at beforehand: a hundred of the longest would be some 100 MB of Python objects.
_LOOK_AHEAD_BYTES = 1_000_000
_BOM = b"\xef\xbb\xbf"


class NdjsonSource:
    """Reads `file` (binary) once. Raises InvalidInput for what no row can cure."""

    total = None

    def __init__(self, file: IO[bytes]) -> None:
        rest = _items(file)
        ahead: list[tuple[int, object]] = []
        size = 0
        for line, item, length in itertools.islice(rest, LOOK_AHEAD):
            ahead.append((line, item))
            size += length
            if size > _LOOK_AHEAD_BYTES:
                break
        if not ahead:
            raise self.nothing()
        self._items = itertools.chain(ahead, ((line, item) for line, item, _ in rest))
        readable = [item for _, item in ahead if isinstance(item, dict)]
        self.names = frozenset(name for item in readable for name in variable_names(item)) if readable else None

    def nothing(self) -> InvalidInput:
        return InvalidInput("ndjson_empty", "There is no line in the body: send one JSON object a line.")

    def rows(self, wanted: frozenset[str]) -> Iterator[Row]:
        for line, item in self._items:
            yield item if isinstance(item, Reject) else row_of(line, item, wanted)


def _items(file: IO[bytes]) -> Iterator[tuple[int, object, int]]:
    """Line numbers with what stands there: a JSON value, or a Reject; and the bytes of the line."""
    for line in itertools.count(1):
        raw = file.readline(MAX_RECORD + 1)
        if not raw:
            return
        if len(raw) > MAX_RECORD:
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(MAX_RECORD + 1)
            yield line, Reject(line, "ndjson_row_too_large", f"the line has more than {MAX_RECORD:,} bytes"), 0
            continue
        if line == 1:
            raw = raw.removeprefix(_BOM)
        try:
            text = raw.decode().strip()
        except UnicodeDecodeError:
            raise InvalidInput("ndjson_encoding", f"Line {line} of the body is not UTF-8.") from None
        if text:
            yield line, _value(line, text), len(raw)


def _value(line: int, text: str) -> object:
    try:
        return json.loads(text, parse_constant=_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return Reject(line, "ndjson_invalid", "the line is not a JSON object that can be read")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has the same key twice")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")
