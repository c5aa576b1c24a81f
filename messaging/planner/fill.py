"""Reading a recipient list into a blast, from wherever it stands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from django.db import Error as DatabaseError

from messaging.domain.errors import Conflict, InvalidInput
from messaging.ledger.planning import Chunk, has_all_of, write_chunk
from messaging.ledger.uploads import Counts, Upload, keep_lease
from messaging.planner.encode import Encoder
from messaging.planner.rows import Row, chunks

#: Rejected rows that are kept of a list of which most are: each is a row in the database, and may be two bytes of a body.
MAX_REJECTED = 100_000


def fill(upload: Upload, rows: Iterator[Row], encoder: Encoder, tell: Callable[[Counts], None]) -> Counts:
    """Add `rows` to the blast of an open upload, chunk by chunk; `tell` is called at the start and after each commit.

    Rows that the upload has read already (it was interrupted) are read again, checked to be the same recipients, and
    skipped. Raises Conflict: `recipients_differ`, or as `write_chunk`; InvalidInput `too_many_rejected`. What was committed
    stays: call it again with the same rows and it goes on.

    While the database takes one chunk, the next one is encoded in a thread: two cores work, and the source is read in
    the caller's thread (it may be a query of his).
    """
    tell(upload.counts)
    with ThreadPoolExecutor(1, "planner-encode") as pool:
        _skip(upload, _encoded(pool, encoder, itertools.islice(rows, upload.counts.rows)))
        for chunk in _encoded(pool, encoder, rows):
            _check_rejected(upload.counts)
            tell(write_chunk(upload, chunk))
    return upload.counts


def compare(upload: Upload, rows: Iterator[Row], encoder: Encoder) -> None:
    """Read `rows` to their end. Raises Conflict `recipients_differ` if they are not those that `upload` was made of."""
    with ThreadPoolExecutor(1, "planner-encode") as pool:
        _skip(upload, _encoded(pool, encoder, itertools.islice(rows, upload.counts.rows + 1)))


def _check_rejected(counts: Counts) -> None:
    if counts.rejected > MAX_REJECTED and counts.rejected * 2 > counts.rows:
        raise InvalidInput(
            "too_many_rejected",
            f"More than {MAX_REJECTED:,} rows, and most of the list, cannot be sent to. Is it a list of recipients?",
            field="recipients",
        )


def _encoded(pool: ThreadPoolExecutor, encoder: Encoder, rows: Iterable[Row]) -> Iterator[Chunk]:
    """The chunks of `rows`. While the caller works on one, the next is being encoded; while the next is still coming in,
    he gets the one that is ready; and if it breaks off, he gets all of it that came."""
    ahead: Future[Chunk] | None = None
    broken: Exception | None = None
    collected = chunks(rows, awaited=lambda: ahead is not None and ahead.done())
    while True:
        following = None
        try:
            chunk = next(collected, None)
        except DatabaseError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever the source raises, when all before it is handed on)
            chunk, broken = None, error
        if chunk:
            following = pool.submit(encoder.encode, chunk)
        if ahead is not None:
            yield ahead.result()
        ahead = following
        if chunk is None and ahead is None:
            break
    if broken is not None:
        raise broken


def _skip(upload: Upload, encoded: Iterable[Chunk]) -> None:
    """Make sure that the rows read before are the ones that this upload began with.

    Skipping rows of another list would leave people out without a word. Recipients and rejected lines are compared,
    values of variables are not.
    """
    rows = rejected = 0
    for chunk in encoded:
        if not has_all_of(upload, chunk):
            raise _other_list()
        keep_lease(upload)
        rows += chunk.rows
        rejected += len(chunk.rejects)
    if (rows, rejected) != (upload.counts.rows, upload.counts.rejected):
        raise _other_list()


def _other_list() -> Conflict:
    return Conflict(
        "recipients_differ",
        "This is not the list that the blast was begun with: recipients it has read are missing or others stand in"
        " their place. Go on with the same list, or cancel the blast and plan a new one.",
    )
