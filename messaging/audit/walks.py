"""The populations of an audit, and how each is walked: a page of ids at a time, by an index, up to what was there at first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from core.db.cursor import ledger_cursor
from messaging.audit import checks

#: Sends (or rows of their size) that one statement looks at; of batches, which have a hundred each, a hundredth of it.
PAGE = 5_000


@dataclass(frozen=True, slots=True)
class Walk:
    """`check` is the statement of `checks` that takes a page's ids, `pages` gives them; its argument: only ids from here on."""

    name: str
    check: str
    pages: Callable[[UUID], Iterator[list[Any]]]


def _by_id(table: str, size: int) -> Callable[[UUID], Iterator[list[Any]]]:
    newest = f"SELECT id FROM {table} ORDER BY id DESC LIMIT 1"
    page = f"SELECT id FROM {table} WHERE id > %(after)s AND id <= %(last)s ORDER BY id LIMIT {size}"

    def pages(since: UUID) -> Iterator[list[Any]]:
        last = _all(newest)
        after: Any = since
        while last and (rows := _all(page, after=after, last=last[0][0])):
            after = rows[-1][0]
            yield [row[0] for row in rows]

    return pages


_LETTERS = f"SELECT id FROM core_dead_letters WHERE id > %(after)s ORDER BY id LIMIT {PAGE}"
# A lease that is moved ahead meanwhile may be met twice, and one that is new not at all.
_OPEN_JOBS = f"""
SELECT lease_until, job_key FROM core_processed_jobs
WHERE done_at IS NULL AND lease_until >= %(after)s AND lease_until <= clock_timestamp() + interval '1 hour'
ORDER BY lease_until LIMIT {PAGE}
"""


def _letters(since: UUID) -> Iterator[list[Any]]:
    after = 0
    while rows := _all(_LETTERS, after=after):
        after = rows[-1][0]
        yield [row[0] for row in rows]


def _open_jobs(since: UUID) -> Iterator[list[Any]]:
    after: Any = "-infinity"
    while rows := _all(_OPEN_JOBS, after=after):
        yield [row[1] for row in rows]
        if len(rows) < PAGE or rows[-1][0] == after:
            return
        after = rows[-1][0]


def _all(statement: str, **parameters: Any) -> list[Any]:
    with ledger_cursor() as sql:
        return sql.all(statement, parameters)


BLASTS = Walk("blasts", checks.BLASTS, _by_id("messaging_blasts", 500))
SENDS = Walk("sends", checks.SENDS, _by_id("messaging_sends", PAGE))
WALKS = (
    Walk("jobs", checks.JOBS, _open_jobs),
    Walk("batches", checks.BATCHES, _by_id("messaging_batches", PAGE // 100)),
    SENDS,
    Walk("dead letters", checks.LETTERS, _letters),
    BLASTS,
)
