"""A recipient list as a CSV file.

The first line is the header. One column is named `to` (in any case: it is what spreadsheets do to headers); every other
column is a variable of that name, spelled and cased as the template spells it. UTF-8, with or without a byte order
mark; columns separated by commas; quotation as spreadsheets do it. Blank lines are skipped and not counted.

Only columns that the template uses are read: nothing is stored of a person that nobody is going to send.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any

from messaging.domain.errors import InvalidInput
from messaging.ledger.planning import Reject
from messaging.planner.lines import MAX_RECORD, Lines, RecordTooLongError, scan_utf8
from messaging.planner.rows import Recipient, Row

TO = "to"


class CsvSource:
    """Reads `file` (binary, or text opened with `newline=""`) once. Raises InvalidInput for what no row can cure."""

    def __init__(self, file: IO[Any]) -> None:
        line_ends = scan_utf8(file) if _seekable_bytes(file) else None
        self._lines = Lines(file)
        self._reader = csv.reader(self._lines, strict=True)
        self._columns = self._header()
        self._to = _column_of_to(self._columns)
        self.names = frozenset(name for i, name in enumerate(self._columns) if name and i != self._to)
        #: Rows to expect: a guess, because a row may have several lines, or be blank.
        self.total = None if line_ends is None else max(line_ends - 1, 0)

    def nothing(self) -> InvalidInput:
        return InvalidInput("csv_no_rows", "The CSV file has a header and no recipients below it.", field="csv")

    def rows(self, wanted: frozenset[str]) -> Iterator[Row]:
        """Every row that is not blank, in order. Variables are those of `wanted` (a part of `names`)."""
        lines, reader, to, width = self._lines, self._reader, self._to, len(self._columns)
        picks = [(name, i) for i, name in enumerate(self._columns) if i != to and name in wanted]
        while True:
            lines.start_record()
            line = lines.number + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except RecordTooLongError:
                lines.give_up_record()
                yield Reject(
                    line,
                    "csv_row_too_large",
                    f"the row has more than {MAX_RECORD:,} characters, or a quotation mark is not closed",
                )
                continue
            except csv.Error:
                lines.give_up_record()
                yield Reject(
                    line,
                    "csv_quotes",
                    'a quotation mark is not closed, or text follows it (write a " inside quotes as "")',
                )
                continue
            if not cells:
                continue
            if len(cells) != width:
                # Over several lines it is most likely a stray quotation mark: the lines behind it are rows of their own.
                if lines.lines_in_record() > 1:
                    lines.give_up_record()
                yield Reject(line, "csv_columns", f"the row has {len(cells)} columns, the header {width}")
            elif lines.has_nul:
                yield Reject(line, "csv_nul", "the row holds a NUL byte")
            else:
                yield Recipient(line, cells[to], {name: cells[i] for name, i in picks}, lines.size)

    def _header(self) -> list[str]:
        try:
            cells = next(self._reader, None)
        except (csv.Error, RecordTooLongError):
            cells = []
        if cells is None:
            raise InvalidInput(
                "csv_empty", "The CSV file is empty. Its first line names the columns, one of them: to.", field="csv"
            )
        return [cell.strip() for cell in cells]


def _column_of_to(columns: list[str]) -> int:
    """Never quotes the columns: in a file without a header they are a person's address and name."""
    found = [i for i, name in enumerate(columns) if name.lower() == TO]
    if not found:
        hint = " Separate columns by commas, not semicolons or tabs." if any(map(_other_separator, columns)) else ""
        raise InvalidInput(
            "csv_no_to_column", f"The first line of the CSV file has no column named to.{hint}", field="csv"
        )
    twice = {name for name, times in Counter(columns).items() if name and times > 1}
    if len(found) > 1 or twice:
        which = TO if len(found) > 1 else "a variable"
        raise InvalidInput("csv_column_twice", f"The header of the CSV file names {which} twice.", field="csv")
    return found[0]


def _other_separator(cell: str) -> bool:
    return any(part.strip().lower() == TO for separator in ";\t|" for part in cell.split(separator))


def _seekable_bytes(file: IO[Any]) -> bool:
    seekable = getattr(file, "seekable", None)
    return bool(seekable and seekable()) and isinstance(file.read(0), bytes)
