"""From rows of a recipient list to rows of the ledger: checked, recognised, sealed. Pure: no database.

It runs beside the database's work (`planner.fill`), so nothing here may touch a connection.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from core.security.crypto import fingerprint
from core.security.hashing import canonical_json
from core.security.ids import new_id
from messaging.channels.email import Template
from messaging.channels.email.address import UNSAFE, parse_recipient
from messaging.channels.email.certain import certainty_of
from messaging.channels.sealing import seal_recipient
from messaging.channels.templates.variables import MAX_BYTES, validate_variables
from messaging.domain.errors import InvalidInput, MessagingError
from messaging.ledger.planning import Chunk, Reject
from messaging.planner.rows import Recipient, Row

#: A row of COPY … (FORMAT binary): number of fields; id, fingerprint and sealed value, each after its length.
_STAGED = struct.Struct("!hi16si16si")
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
#: Rows rendered to see whether the template works with this list at all.
_SAMPLE = 10


class Encoder:
    def __init__(self, template: Template, now: datetime) -> None:
        self._template = template
        self._now = now
        self._names = template.names()
        self._lines = sorted(template.subject_names())
        self._certainty = certainty = certainty_of(template)
        self._sure_lines, self._sure_bodies = certainty.lines, certainty.bodies
        # A character is at most six bytes of JSON, so that shorter rows need not be measured.
        self._surely_fits = (MAX_BYTES - len(canonical_json(dict.fromkeys(self._names, "")))) // 6

    def check_sample(self, rows: Iterable[Row]) -> None:
        """Raise InvalidInput if the template can be rendered for none of the first good rows: it is at fault, not they."""
        first: MessagingError | None = None
        tried = 0
        for row in rows:
            if not isinstance(row, Recipient) or self._unfit(row) is not None:
                continue
            try:
                self._template.check(row.variables, self._now)
            except MessagingError as error:
                if len(row.variables) < len(self._names):
                    continue  # it lacks a value: the row is at fault
                first = first or error
            else:
                return
            tried += 1
            if tried == _SAMPLE:
                break
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
                fault = self._unfit(row) or self._unrenderable(row)
                if fault is None:
                    address = parse_recipient(row.to)
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

    def _unfit(self, row: Recipient) -> Reject | None:
        """What is wrong with the variables of a row, by themselves."""
        for name in self._lines:
            if _has_line_break(row.variables.get(name)):
                return Reject(
                    row.line,
                    "header_injection",
                    f"{name} stands in the subject or a header and holds a line break or control character",
                )
        if row.size > self._surely_fits:
            try:
                validate_variables(row.variables)
            except InvalidInput as error:
                return Reject(row.line, error.code, f"{error.field}: {error.message}")
        return None

    def _unrenderable(self, row: Recipient) -> Reject | None:
        """Why the row could not be rendered when its turn comes.

        A row that cannot fail is not rendered: that is what, for most templates, their tree and its length say.
        """
        variables = row.variables
        try:
            # Not each name needs a value (`default`, branches): rendering knows. A CSV has columns for all.
            if len(variables) < len(self._names) or row.size > self._sure_bodies:
                self._template.check(variables, self._now)
            elif self._lines and self._length_of_lines(variables) > self._sure_lines:
                self._template.check_lines(variables, self._now, self._certainty.units_of_bodies(row.size))
        except MessagingError as error:
            return Reject(row.line, error.code, f"{error.field}: {error.message}" if error.field else error.message)
        return None

    def _length_of_lines(self, variables: Mapping[str, object]) -> float:
        """Of the values in subject and headers; infinite if they are not only text."""
        length = 0
        for name in self._lines:
            value = variables[name]
            if not isinstance(value, str):
                return math.inf
            length += len(value)
        return length


def _has_line_break(value: object) -> bool:
    if isinstance(value, str):
        return UNSAFE.search(value) is not None
    if isinstance(value, list):
        return any(map(_has_line_break, value))
    if isinstance(value, dict):
        return any(map(_has_line_break, value.values()))
    return False
