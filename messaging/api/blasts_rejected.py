"""The rejected rows of a blast as CSV: which upload, which line, why. Never the row itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from uuid import UUID

from django.db.models import Q

from messaging.models import BlastReject

COLUMNS = ("upload", "line", "code", "reason")
#: Rows of one query and of one piece of the answer.
PAGE = 2_000


def rejected_csv(blast_id: UUID) -> Iterator[bytes]:
    """The file in pieces, in the order of uploads and lines. Paged by the last row: no snapshot is held meanwhile."""
    yield _lines([COLUMNS])
    rows = BlastReject.objects.filter(blast_id=blast_id).order_by("upload", "line").values_list(*COLUMNS)
    after: tuple[int, int] | None = None
    while True:
        # The first condition is what the index starts from; the second alone would be a filter.
        page = list(rows.filter(_behind(*after))[:PAGE] if after else rows[:PAGE])
        if page:
            yield _lines(page)
        if len(page) < PAGE:
            return
        after = page[-1][0], page[-1][1]


def _behind(upload: int, line: int) -> Q:
    return Q(upload__gte=upload) & (Q(upload__gt=upload) | Q(line__gt=line))


def _lines(rows: object) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)  # type: ignore[arg-type]
    return text.getvalue().encode()
