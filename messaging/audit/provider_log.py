"""The ledger against what a provider says it accepted.

One JSON object a line: `{"send": "<our send id>", "id": "<the provider's id>", "at": <seconds since 1970>}`. `at` may be
missing; with it, only sends made and accepted within the time of the log are looked for in it, so that a part of a log will
do. `manage.py sandbox_log` writes such a file from the sandbox; for a real provider an export is turned into it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from core.db import ledger_cursor
from messaging.audit.report import Difference
from messaging.audit.walks import PAGE, SENDS

#: Seconds by which the provider's clock and ours may differ.
SLACK = 5


class LogError(ValueError):
    """The log cannot be read. The message names the line, and nothing that is in it."""


_CREATE = """
CREATE TEMP TABLE IF NOT EXISTS audit_log (line bigint, send uuid, provider_id text, at timestamptz);
TRUNCATE audit_log
"""
_LOAD = """
INSERT INTO audit_log SELECT line, send, provider_id, to_timestamp(at)
FROM unnest(%(lines)s::bigint[], %(sends)s::uuid[], %(ids)s::text[], %(ats)s::float8[]) AS l (line, send, provider_id, at)
"""
_INDEX = """
CREATE INDEX audit_log_line ON audit_log (line);
CREATE INDEX audit_log_send ON audit_log (send);
ANALYZE audit_log
"""

# Whoever redrives an ambiguous send accepts that the provider takes it twice.
_ACCEPTED_RISK = (
    "(SELECT r.id FROM messaging_redrives r WHERE r.send_id = l.send AND r.was = 'ambiguous' LIMIT 1) IS NOT NULL"
)
_LINES = f"""
SELECT coalesce(l.send::text, 'line ' || l.line), w.what, w.detail
FROM audit_log l
LEFT JOIN LATERAL (SELECT * FROM messaging_sends s WHERE s.id = l.send LIMIT 1) s ON true
CROSS JOIN LATERAL (VALUES
    ('log_without_send', '', l.send IS NULL),
    ('accepted_unknown_send', '', l.send IS NOT NULL AND s.id IS NULL),
    ('accepted_unresolved', s.status, s.status IN ('sending', 'ambiguous')),
    ('accepted_not_sent', s.status, s.status NOT IN ('sent', 'sending', 'ambiguous') AND NOT {_ACCEPTED_RISK}),
    ('accepted_other_id', '', s.status = 'sent' AND s.provider_id <> l.provider_id AND NOT {_ACCEPTED_RISK}),
    ('accepted_twice', '',
     (SELECT count(DISTINCT o.provider_id) FROM audit_log o WHERE o.send = l.send) > 1 AND NOT {_ACCEPTED_RISK})
) AS w (what, detail, wrong)
WHERE l.line = ANY (%(ids)s::bigint[]) AND w.wrong
"""
_MISSING = f"""
SELECT s.id::text, 'sent_not_in_log', ''
FROM messaging_sends s, (
    SELECT coalesce(min(at) + {SLACK} * interval '1 second', '-infinity') AS first,
           coalesce(max(at) - {SLACK} * interval '1 second', 'infinity') AS last FROM audit_log
) t
WHERE s.id = ANY (%(ids)s::uuid[]) AND s.status = 'sent' AND s.created_at >= t.first AND s.accepted_at <= t.last
  AND (SELECT l.line FROM audit_log l WHERE l.send = s.id LIMIT 1) IS NULL
"""


@contextmanager
def loaded(lines: Iterable[str]) -> Iterator[int]:
    """The log in a temporary table of this connection, a chunk at a time; gives the number of entries."""
    with ledger_cursor() as sql:
        for statement in _CREATE.split(";"):
            sql.run(statement)
        rows = _parsed(lines)
        count = 0
        while chunk := list(itertools.islice(rows, PAGE)):
            numbers, sends, ids, ats = (list(column) for column in zip(*chunk, strict=True))
            sql.run(_LOAD, {"lines": numbers, "sends": sends, "ids": ids, "ats": ats})
            count += len(chunk)
        for statement in _INDEX.split(";"):
            sql.run(statement)
    try:
        yield count
    finally:
        with ledger_cursor() as sql:
            sql.run("DROP TABLE audit_log")


def _parsed(lines: Iterable[str]) -> Iterator[tuple[int, UUID | None, str, float | None]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            send, pk, at = entry.get("send"), entry["id"], entry.get("at")
            yield number, None if send is None else UUID(send), str(pk), None if at is None else float(at)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise LogError(
                f'Line {number} of the provider\'s log is not {{"send": …, "id": …, "at": …}} ({type(error).__name__}).'
            ) from None


Look = Callable[[Sequence[Any]], Iterator[Difference]]


def looks() -> Iterator[tuple[list[Any], Look]]:
    """Pages, and what to ask of each: of the log's lines, then of the ledger's sends."""
    after = 0
    while page := [row[0] for row in _all(_NEXT, after=after)]:
        after = page[-1]
        yield page, lambda ids: _asked(_LINES, ids)
    for page in SENDS.pages(UUID(int=0)):
        yield page, lambda ids: _asked(_MISSING, ids)


_NEXT = f"SELECT line FROM audit_log WHERE line > %(after)s ORDER BY line LIMIT {PAGE}"


def _asked(statement: str, ids: Sequence[Any]) -> Iterator[Difference]:
    return (Difference(what, pk, detail or "") for pk, what, detail in _all(statement, ids=list(ids)))


def _all(statement: str, **parameters: Any) -> list[Any]:
    with ledger_cursor() as sql:
        return sql.all(statement, parameters)
