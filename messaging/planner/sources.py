"""Where recipients come from: a CSV file (path or open file), or any iterable of mappings."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Protocol, TypeAlias, cast

from core.security.hashing import canonical_json
from messaging.channels.templates.variables import validate_variables
from messaging.domain.errors import InvalidInput
from messaging.ledger.planning import Reject
from messaging.planner.csv_source import CsvSource
from messaging.planner.rows import Recipient, Row

Recipients: TypeAlias = Iterable[Mapping[str, Any]] | str | os.PathLike[str] | IO[bytes] | IO[str]

#: Mappings looked at to learn which variables the list has.
LOOK_AHEAD = 100
#: Bytes of memory that a value of JSON takes besides its text, more or less: an empty list of two characters has 56.
_VALUE_BYTES = 64
_KEYS = frozenset({"to", "variables"})


class Source(Protocol):
    """Recipients, to be read once."""

    @property
    def names(self) -> frozenset[str] | None:
        """The variables that it offers; None if its first rows do not tell."""

    @property
    def total(self) -> int | None:
        """Rows to expect, if that can be guessed."""

    def nothing(self) -> InvalidInput:
        """What to raise if there are no rows."""

    def rows(self, wanted: frozenset[str]) -> Iterator[Row]:
        """All rows in order; of their variables those in `wanted`. May raise InvalidInput in between."""


@contextmanager
def open_source(recipients: Recipients) -> Iterator[Source]:
    """The source for what a caller gave. A path is opened and closed here; an open file stays open and his."""
    if isinstance(recipients, str | os.PathLike):
        try:
            file = open(recipients, "rb")  # noqa: SIM115  (closed below; only the opening may be answered like this)
        except OSError as error:
            raise InvalidInput(
                "csv_unreadable", f"The CSV file cannot be opened: {error.strerror}.", field="csv"
            ) from None
        with file:
            yield CsvSource(file)
    elif hasattr(recipients, "readline"):
        yield CsvSource(cast("IO[Any]", recipients))
    elif isinstance(recipients, Iterable) and not isinstance(recipients, Mapping | bytes | bytearray | memoryview):
        yield MappingSource(recipients)
    else:
        raise InvalidInput(
            "invalid_type", "recipients must be a list of {to, variables}, or a CSV file.", field="recipients"
        )


class MappingSource:
    """`{"to": …, "variables": {…}}` each. Their numbers (from 1) stand for lines."""

    def __init__(self, recipients: Iterable[object]) -> None:
        rest = iter(recipients)
        ahead = list(itertools.islice(rest, LOOK_AHEAD))
        if not ahead:
            raise self.nothing()
        self._items = itertools.chain(ahead, rest)
        self.names = frozenset(name for item in ahead for name in variable_names(item))
        self.total = len(recipients) if isinstance(recipients, list | tuple) else None

    def nothing(self) -> InvalidInput:
        return InvalidInput("no_recipients", "The list of recipients is empty.", field="recipients")

    def rows(self, wanted: frozenset[str]) -> Iterator[Row]:
        for number, item in enumerate(self._items, 1):
            yield row_of(number, item, wanted)


def variable_names(item: object) -> list[str]:
    """The variables of one recipient."""
    variables = item.get("variables") if isinstance(item, Mapping) else None
    return [name for name in variables if isinstance(name, str)] if isinstance(variables, Mapping) else []


def row_of(number: int, item: object, wanted: frozenset[str]) -> Row:
    """The row that `item`, a recipient or what was given for one, makes."""
    if not isinstance(item, Mapping):
        return Reject(number, "invalid_type", "a recipient must be an object: {to, variables}")
    if item.keys() - _KEYS:
        return Reject(number, "unknown_field", "a recipient has to and variables; put values into variables")
    try:
        given = item.get("variables")
        variables = validate_variables({} if given is None else given)
    except InvalidInput as error:
        return Reject(number, error.code, f"variables: {error.message}")
    variables = {name: value for name, value in variables.items() if name in wanted}
    return Recipient(number, item.get("to"), variables, _size(canonical_json(variables)))


def _size(encoded: bytes) -> int:
    """What the variables take in memory, roughly: their text, and each value in it."""
    return len(encoded) + _VALUE_BYTES * sum(map(encoded.count, (b",", b"[", b"{")))
