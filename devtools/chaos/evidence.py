"""What clients, ledger and provider say, read from outside by plain SQL and the sandbox's log: nothing of the system's own code
takes part, so that it cannot vouch for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import psycopg

from devtools.chaos.faults import fenced_out
from devtools.chaos.judge import Accepted, Evidence, LedgerSend
from devtools.chaos.load import Submitted
from devtools.chaos.orders import What
from devtools.processes import CommandFailed
from devtools.stack import Stack

_SENDS = """
SELECT s.id::text, s.rail, s.status, s.error_code, s.batch_id::text, b.state
FROM messaging_sends s LEFT JOIN messaging_batches b ON b.id = s.batch_id
"""
_OPEN = "SELECT count(*) FROM messaging_sends WHERE status IN ('scheduled', 'queued', 'sending')"
_OPEN_BATCHES = "SELECT count(*) FROM messaging_batches WHERE state IN ('claimed', 'preparing', 'unknown')"
_OPEN_JOBS = "SELECT count(*) FROM core_processed_jobs WHERE done_at IS NULL"
_OPEN_BLASTS = "SELECT count(*) FROM messaging_blasts WHERE state <> 'finished'"
_DEAD = "SELECT count(*) FROM core_dead_letters"


class Ledger:
    """A connection of the run's own; `look` survives a database that is away."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        if self._connection is not None:
            self._connection.close()

    def look(self) -> tuple[int, int] | None:
        """Sends and blasts that are open, now; None: the database is away."""
        with suppress(psycopg.OperationalError):
            return self.number(_OPEN), self.number(_OPEN_BLASTS)
        self._connection = None
        return None

    def number(self, sql: str) -> int:
        ((found,),) = self.rows(sql)
        return int(found)

    def rows(self, sql: str) -> list[Any]:
        if self._connection is None:
            self._connection = psycopg.connect(self._url, autocommit=True, application_name="chaos")
        return self._connection.execute(sql).fetchall()


def collect(stack: Stack, ledger: Ledger, submitted: Sequence[Submitted]) -> Evidence:
    """Nothing may be going on any more."""
    return Evidence(
        recipients=frozenset(to for one in submitted for to in one.order.recipients),
        promised=frozenset(
            pk for one in submitted if one.order.what in (What.CODE, What.PRODUCT) for ids in one.ids for pk in ids
        ),
        unanswered=sum(not one.answered and not one.refused for one in submitted),
        refused=Counter(one.refused for one in submitted if one.refused),
        answered_differently=sum(len(one.ids) > 1 for one in submitted),
        sends=[LedgerSend(*row) for row in ledger.rows(_SENDS)],
        accepted=[
            Accepted(line["tags"].get("send_id"), line["to"][0], line["accepted_at"]) for line in stack.sandbox.log()
        ],
        dead_letters=ledger.number(_DEAD),
        open_batches=ledger.number(_OPEN_BATCHES),
        open_jobs=ledger.number(_OPEN_JOBS),
        open_blasts=ledger.number(_OPEN_BLASTS),
        audit=audit(stack),
    )


def audit(stack: Stack) -> str:
    """What `manage.py audit` says of the ledger and the provider's log, if it finds a difference; else nothing."""
    path = stack.data_dir / "provider.ndjson"
    path.write_text(stack.manage("sandbox_log", "--url", stack.sandbox.url))
    try:
        stack.manage("audit", "--provider-log", str(path))
    except CommandFailed as error:
        return str(error)
    return ""


def all_fenced_out(stack: Stack) -> int:
    """Answers of workers whose batch had been taken over meanwhile."""
    return sum(fenced_out(log) for log in stack.supervisor.logs.glob("email-*.log"))
