"""The rejected rows of a blast as CSV: which upload, which line, why. Never the row itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from uuid import UUID

from messaging.models import BlastReject, BlastUpload

COLUMNS = ("upload", "line", "code", "reason")
#: Rows of one query and of one piece of the answer.
PAGE = 2_000


def rejected_csv(blast_id: UUID) -> Iterator[bytes]:
    """The file in pieces, in the order of uploads and lines. Paged by the last line: no snapshot is held meanwhile, and
    the last page costs what the first one does."""
    yield _lines([COLUMNS])
    for upload in BlastUpload.objects.filter(blast_id=blast_id).order_by("number").values_list("number", flat=True):
        rows = BlastReject.objects.filter(blast_id=blast_id, upload=upload).order_by("line").values_list(*COLUMNS)
        page = list(rows[:PAGE])
        while page:
            yield _lines(page)
            page = list(rows.filter(line__gt=page[-1][1])[:PAGE]) if len(page) == PAGE else []


def _lines(rows: object) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)  # type: ignore[arg-type]
    return text.getvalue().encode()
