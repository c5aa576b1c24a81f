"""From rows of a recipient list to rows of the ledger: checked, recognised, sealed. Pure: no database.

It runs beside the database's work (`planner.fill`), so nothing here may touch a connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from core.crypto import fingerprint
from core.hashing import canonical_json
from core.ids import new_id
from messaging.addresses import UNSAFE, parse_address
from messaging.content import Template, validate_variables
from messaging.content.variables import MAX_BYTES
from messaging.errors import InvalidInput
from messaging.planner.rows import Recipient, Reject, Row
from messaging.sealing import seal_recipient

#: A row of COPY … (FORMAT binary): number of fields; id, fingerprint and sealed value, each after its length.
_STAGED = struct.Struct("!hi16si16si")
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
#: Rows rendered to see whether the template works with this list at all.
_SAMPLE = 10


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ready for one transaction. `rows` = len(fingerprints) + len(rejects)."""

    rows: int
    staged: bytes  # `(id uuid, fingerprint bytea, sealed bytea)` in PostgreSQL's binary COPY format, ids ascending
    fingerprints: Sequence[bytes]
    rejects: Sequence[Reject]


class Encoder:
    def __init__(self, template: Template, now: datetime) -> None:
        self._template = template
        self._now = now
        self._names = template.names()
        self._lines = sorted(template.subject_names())
        # A character is at most six bytes of JSON, so that shorter rows need not be measured.
        self._surely_fits = (MAX_BYTES - len(canonical_json(dict.fromkeys(self._names, "")))) // 6

    def check_sample(self, rows: Iterable[Row]) -> None:
        """Raise InvalidInput if the template can be rendered for none of the first good rows: it is at fault, not they."""
        first: InvalidInput | None = None
        good = (row for row in rows if isinstance(row, Recipient) and self._fault(row) is None)
        for row, _ in zip(good, range(_SAMPLE), strict=False):
            try:
                self._template.check(row.variables, self._now)
            except InvalidInput as error:
                first = first or error
            else:
                return
        if first is not None:
            raise first

    def encode(self, rows: Sequence[Row]) -> Chunk:
        staged = [_HEADER]
        fingerprints: list[bytes] = []
        rejects: list[Reject] = []
        for row in rows:
            if type(row) is Reject:
                rejects.append(row)
                continue
            assert type(row) is Recipient
            try:
                fault = self._fault(row)
                if fault is None:
                    address = parse_address(row.to, "to")
                    send_id = new_id()
                    sealed = seal_recipient(send_id, address.wire, row.variables)
            except InvalidInput as error:
                fault = Reject(row.line, error.code, f"to: {error.message}")
            except UnicodeEncodeError:  # halves of surrogate pairs, from a text file opened with surrogateescape
                fault = Reject(row.line, "invalid_variables", "the row is not valid Unicode")
            if fault is not None:
                rejects.append(fault)
                continue
            mark = fingerprint(address.canonical)
            fingerprints.append(mark)
            staged.append(_STAGED.pack(3, 16, send_id.bytes, 16, mark, len(sealed)))
            staged.append(sealed)
        staged.append(_TRAILER)
        return Chunk(len(rows), b"".join(staged), fingerprints, rejects)

    def _fault(self, row: Recipient) -> Reject | None:
        """What is wrong with the variables of a row."""
        variables = row.variables
        for name in self._lines:
            if _has_line_break(variables.get(name)):
                return Reject(
                    row.line,
                    "header_injection",
                    f"{name} stands in the subject or a header and holds a line break or control character",
                )
        try:
            if row.size > self._surely_fits:
                validate_variables(variables)
            if len(variables) < len(self._names):
                # Not each name needs a value (`default`, branches): rendering knows. Never for a CSV: it has columns.
                self._template.check(variables, self._now)
        except InvalidInput as error:
            return Reject(row.line, error.code, f"{error.field}: {error.message}")
        return None


def _has_line_break(value: object) -> bool:
    if isinstance(value, str):
        return UNSAFE.search(value) is not None
    if isinstance(value, list):
        return any(map(_has_line_break, value))
    if isinstance(value, dict):
        return any(map(_has_line_break, value.values()))
    return False
