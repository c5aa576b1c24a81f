"""Physical lines of a CSV file for `csv.reader`: decoded one by one, bounded, numbered, and able to go back.

Going back is what keeps a stray quotation mark from swallowing the lines behind it: the record it opened is given up
after its first line, and reading goes on at the next one.
"""

from __future__ import annotations

import codecs
from collections import deque
from typing import IO, Any

from messaging.domain.errors import InvalidInput

#: Longest record, in characters (bytes for a single line). Far above what the variables of a send may hold (16 KiB),
#: so that columns which the template does not use have room.
MAX_RECORD = 65_536
#: Lines of one record. A stray quotation mark makes a record of all that follows; each line is read again that often.
MAX_LINES = 100
_BLOCK = 1 << 20
_BOM = "\ufeff"


class RecordTooLongError(Exception):
    """The record in hand exceeds MAX_RECORD."""


class Lines:
    """Iterator over the lines of `file` (binary or text). Raises InvalidInput `csv_encoding`, RecordTooLongError."""

    def __init__(self, file: IO[Any]) -> None:
        self._readline = file.readline
        self._record: list[str | None] = []  # None: a line that is too long to be kept
        self._again: deque[str | None] = deque()
        self.number = 0  # of the line handed out last
        self.size = 0  # of the record in hand, in characters
        self.has_nul = False  # somewhere in the record in hand

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else self._read()
        if line == "":
            raise StopIteration
        self.number += 1
        self._record.append(line)
        if line is None:
            raise RecordTooLongError
        self.size += len(line)
        if self.size > MAX_RECORD or len(self._record) > MAX_LINES:
            raise RecordTooLongError
        if "\0" in line:
            self.has_nul = True
        return line

    def start_record(self) -> None:
        """The lines handed out so far are done with."""
        self._record.clear()
        self.size = 0
        self.has_nul = False

    def lines_in_record(self) -> int:
        return len(self._record)

    def give_up_record(self) -> None:
        """Hand out the lines of the record in hand again, but for its first."""
        rest = self._record[1:]
        self._again.extendleft(reversed(rest))
        self.number -= len(rest)

    def _read(self) -> str | None:
        """The next line; "" at the end; None for one that is too long, which is then skipped to its end."""
        try:
            raw = self._readline(MAX_RECORD + 1)
            newline = b"\n" if isinstance(raw, bytes) else "\n"
            if len(raw) > MAX_RECORD:
                while raw and not raw.endswith(newline):
                    raw = self._readline(MAX_RECORD + 1)
                return None
            line = raw.decode() if isinstance(raw, bytes) else raw
        except UnicodeDecodeError:
            raise not_utf8(self.number + 1) from None
        assert isinstance(line, str)
        return line if self.number else line.removeprefix(_BOM)


def not_utf8(line: int) -> InvalidInput:
    return InvalidInput(
        "csv_encoding", f"Line {line} of the CSV file is not UTF-8. Save the file as “CSV UTF-8”.", field="csv"
    )


def scan_utf8(file: IO[bytes]) -> int:
    """The number of line ends from here to the end of `file`, which is left where it was.

    Raises InvalidInput `csv_encoding`. A million rows take some 50 ms, and the list is refused before its first row is
    planned and not at its last.
    """
    start = file.tell()
    decoder = codecs.getincrementaldecoder("utf-8")()
    line_ends = 0
    while block := file.read(_BLOCK):
        try:
            decoder.decode(block)
        except UnicodeDecodeError as error:
            # The decoder prefixes what it kept of the block before: at most three bytes, none of them a line end.
            raise not_utf8(line_ends + error.object.count(b"\n", 0, error.start) + 1) from None
        line_ends += block.count(b"\n")
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise not_utf8(line_ends + 1) from None
    file.seek(start)
    return line_ends
