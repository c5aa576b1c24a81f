"""The rows of a recipient list, and how they are taken: one at a time from the source, in bounded chunks to the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from django.db import Error as DatabaseError

from messaging.ledger.planning import Reject

#: Rows of one transaction. Measured: from 5,000 to 20,000 it is equally fast, 1,000 are a quarter slower (the fixed
#: statements and the commit); and the fewer, the sooner a cancellation is noticed and the less a crash costs.
CHUNK_ROWS = 5_000
#: Size of one chunk: what keeps memory flat when rows are large (5,000 records of 64 KiB would be 320 MB).
CHUNK_SIZE = 8_000_000
#: Seconds in which a chunk is collected: a list that comes in slowly is written as it comes.
CHUNK_SECONDS = 10.0
#: Seconds after which a chunk that is still being collected is slow: the one before it is not kept back for it.
SLOW_SECONDS = 1.0


class Recipient(NamedTuple):
    """A row that could be read. `line`: where it starts in the file, or its number in the list, from 1."""

    line: int
    to: object
    variables: dict[str, Any]
    size: int  # bytes in memory, roughly; at least the characters of its variables as JSON


Row = Recipient | Reject


def chunks(
    rows: Iterable[Row],
    max_rows: int = CHUNK_ROWS,
    max_size: int = CHUNK_SIZE,
    awaited: Callable[[], bool] = lambda: False,
) -> Iterator[list[Row]]:
    """`rows` in lists of at most `max_rows`, each closed by the row that brings it to the size `max_size`, or that comes
    `CHUNK_SECONDS` after its first. If they break off, what was read comes first, and then the error.

    If they come slowly, an empty list comes in between as soon as it is `awaited`.
    """
    chunk: list[Row] = []
    size = 0
    begun = time.monotonic()
    broken: Exception | None = None
    try:
        for row in rows:
            chunk.append(row)
            if type(row) is Recipient:
                size += row.size
            seconds = time.monotonic() - begun
            if len(chunk) >= max_rows or size >= max_size or seconds > CHUNK_SECONDS:
                yield chunk
                chunk = []
                size = 0
                begun = time.monotonic()
            elif seconds > SLOW_SECONDS and awaited():
                yield []
    except DatabaseError:
        raise  # a query of the caller's failed: nothing can be written now, and its error must not be covered by another
    except Exception as error:  # noqa: BLE001  (whatever the source raises, at the end of this)
        broken = error
    if chunk:
        yield chunk
    if broken is not None:
        raise broken
