"""The ledger against what a provider says it accepted.

One JSON object a line: `{"send": "<our send id>", "id": "<the provider's id>", "at": <seconds since 1970>}`. `at` may be
missing; with it, only sends made and accepted within the time of the log are looked for in it, so that a part of a log will
do. `manage.py sandbox_log` writes such a file from the sandbox; for a real provider an export is turned into it.

The log is read into a file of this process, and goes to the database a page at a time: nothing is kept there from one
statement to the next, neither a table (a pooler may give each statement another session) nor a transaction.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

from core.db.cursor import ledger_cursor
from messaging.audit.report import Difference
from messaging.audit.walks import PAGE, SENDS

#: Seconds by which the provider's clock and ours may differ.
SLACK = 5


class LogError(ValueError):
    """The log cannot be read. The message names the line, and nothing that is in it."""


_CREATE = "CREATE TABLE log (line INTEGER PRIMARY KEY, send BLOB, provider_id TEXT NOT NULL, at REAL)"
_INDEX = "CREATE INDEX log_send ON log (send)"
_LOAD = "INSERT INTO log VALUES (?, ?, ?, ?)"
_NEXT = f"SELECT line FROM log WHERE line > ? ORDER BY line LIMIT {PAGE}"
# Of the page from one line to another; `times`: as how many different messages the provider took the send.
_PAGE_OF_LOG = """
SELECT line, send, provider_id, (SELECT count(DISTINCT o.provider_id) FROM log o WHERE o.send = l.send)
FROM log l WHERE line BETWEEN ? AND ? ORDER BY line
"""

# Whoever redrives an ambiguous send accepts that the provider takes it twice.
_ACCEPTED_RISK = (
    "(SELECT r.id FROM messaging_redrives r WHERE r.send_id = l.send AND r.was = 'ambiguous' LIMIT 1) IS NOT NULL"
)
_LINES = f"""
SELECT coalesce(l.send::text, 'line ' || l.line), w.what, w.detail
FROM unnest(%(lines)s::bigint[], %(sends)s::uuid[], %(ids)s::text[], %(times)s::bigint[]) AS l (line, send, provider_id, times)
LEFT JOIN LATERAL (SELECT * FROM messaging_sends s WHERE s.id = l.send LIMIT 1) s ON true
CROSS JOIN LATERAL (VALUES
    ('log_without_send', '', l.send IS NULL),
    ('accepted_unknown_send', '', l.send IS NOT NULL AND s.id IS NULL),
    ('accepted_unresolved', s.status, s.status IN ('sending', 'ambiguous')),
    ('accepted_not_sent', s.status, s.status NOT IN ('sent', 'sending', 'ambiguous') AND NOT {_ACCEPTED_RISK}),
    ('accepted_other_id', '', s.status = 'sent' AND s.provider_id <> l.provider_id AND NOT {_ACCEPTED_RISK}),
    ('accepted_twice', '', l.times > 1 AND NOT {_ACCEPTED_RISK})
) AS w (what, detail, wrong)
WHERE w.wrong
"""
_SENT = """
SELECT s.id FROM messaging_sends s
WHERE s.id = ANY (%(ids)s::uuid[]) AND s.status = 'sent'
  AND (%(first)s::float8 IS NULL OR s.created_at >= to_timestamp(%(first)s::float8))
  AND (%(last)s::float8 IS NULL OR s.accepted_at <= to_timestamp(%(last)s::float8))
"""

Look = Callable[[Sequence[Any]], Iterator[Difference]]


class Log:
    """A log that was read. `entries`: how many."""

    def __init__(self, file: sqlite3.Connection, lines: Iterable[str]) -> None:
        self._file = file
        file.execute(_CREATE)
        self.entries = 0
        rows = _parsed(lines)
        while chunk := list(itertools.islice(rows, PAGE)):
            file.executemany(_LOAD, chunk)
            self.entries += len(chunk)
        file.execute(_INDEX)
        first, last = file.execute("SELECT min(at), max(at) FROM log").fetchone()
        self._first = None if first is None else first + SLACK
        self._last = None if last is None else last - SLACK

    def looks(self) -> Iterator[tuple[list[Any], Look]]:
        """Pages, and what to ask of each: of the log's lines, then of the ledger's sends."""
        after = 0
        while page := [row[0] for row in self._file.execute(_NEXT, [after])]:
            after = page[-1]
            yield page, self._lines
        for page in SENDS.pages(UUID(int=0)):
            yield page, self._missing

    def _lines(self, page: Sequence[Any]) -> Iterator[Difference]:
        lines, sends, ids, times = zip(*self._file.execute(_PAGE_OF_LOG, [page[0], page[-1]]), strict=True)
        rows = _all(
            _LINES,
            lines=list(lines),
            sends=[None if send is None else str(UUID(bytes=send)) for send in sends],
            ids=list(ids),
            times=list(times),
        )
        return (Difference(what, pk, detail or "") for pk, what, detail in rows)

    def _missing(self, page: Sequence[Any]) -> Iterator[Difference]:
        sent = _all(_SENT, ids=list(page), first=self._first, last=self._last)
        return (Difference("sent_not_in_log", str(pk)) for (pk,) in sent if not self._has(pk))

    def _has(self, send: UUID) -> bool:
        return self._file.execute("SELECT 1 FROM log WHERE send = ? LIMIT 1", [send.bytes]).fetchone() is not None


@contextmanager
def loaded(lines: Iterable[str]) -> Iterator[Log]:
    """The log in a file without a name, which ends with the block; memory does not grow with it."""
    with closing(sqlite3.connect("", isolation_level=None)) as file:
        file.execute("BEGIN")  # one transaction: nobody else reads it, and it need not survive
        yield Log(file, lines)


def _parsed(lines: Iterable[str]) -> Iterator[tuple[int, bytes | None, str, float | None]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            send, pk, at = entry.get("send"), entry["id"], entry.get("at")
            yield number, None if send is None else UUID(send).bytes, str(pk), None if at is None else float(at)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise LogError(
                f'Line {number} of the provider\'s log is not {{"send": …, "id": …, "at": …}} ({type(error).__name__}).'
            ) from None


def _all(statement: str, **parameters: Any) -> list[Any]:
    with ledger_cursor() as sql:
        return sql.all(statement, parameters)
