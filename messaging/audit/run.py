"""One audit, from the first page to the report."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction

from core.db.cursor import ledger_cursor
from messaging.audit import counts, provider_log
from messaging.audit.report import Difference, Report
from messaging.audit.walks import BLASTS, WALKS, Walk

#: Seconds until what looks wrong is looked at again.
MOMENT = 0.5

Progress = Callable[[str, int], None]


def audit(
    *,
    hours: float | None = None,
    log: Iterable[str] | None = None,
    limit: int = 20,
    progress: Progress = lambda *_: None,
) -> Report:
    """Compare the ledger with itself, and with `log` (lines as in `provider_log`), and tell what does not fit.

    `hours`: only sends, batches and blasts made since then (open jobs and dead letters in any case); None: all.
    Changes nothing. Not inside a transaction: its snapshots must be short. Raises `provider_log.LogError`.
    """
    assert not transaction.get_connection().in_atomic_block, "Bug: an audit inside a transaction"
    report, started = Report(limit), time.monotonic()
    since = UUID(int=max(0, int((time.time() - hours * 3600) * 1000)) << 80) if hours is not None else UUID(int=0)
    for walk in WALKS:
        for page in walk.pages(since):
            _look(report, page, partial(_differences, walk))
            if walk is BLASTS:
                for blast in page:
                    _look(report, [blast], _counts)
            report.checked[walk.name] = report.checked.get(walk.name, 0) + len(page)
            progress(walk.name, report.checked[walk.name])
    if log is not None:
        with provider_log.loaded(log) as read:
            report.checked["lines of the provider's log"] = read.entries
            for page, look in read.looks():
                _look(report, page, look)
    report.seconds = time.monotonic() - started
    return report


def _look(report: Report, page: Sequence[Any], differences: Callable[[Sequence[Any]], Iterator[Difference]]) -> None:
    """What is wrong now, and a moment later."""
    started = time.monotonic()
    found = set(differences(page))
    report.slowest_ms = max(report.slowest_ms, 1000 * (time.monotonic() - started))
    if found:
        time.sleep(MOMENT)
        still = {(d.what, d.id) for d in differences(page)}
        for difference in sorted(found):
            if (difference.what, difference.id) in still:
                report.add(difference)


def _counts(blasts: Sequence[UUID]) -> Iterator[Difference]:
    return itertools.chain.from_iterable(map(counts.wrong_counts, blasts))


def _differences(walk: Walk, ids: Sequence[Any]) -> Iterator[Difference]:
    with ledger_cursor() as sql:
        return (Difference(what, pk, detail or "") for pk, what, detail in sql.all(walk.check, {"ids": list(ids)}))
