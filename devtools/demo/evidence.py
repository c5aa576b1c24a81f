"""What the ledger, the governor and the provider say, read from outside: plain SQL, Redis, and the sandbox's log.

Nothing of the system's own code takes part, so that it cannot vouch for itself. Latencies are the ledger's: `created_at`
is written by the insert that submits a send, `accepted_at` by the transaction that records the provider's answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import psycopg
import redis

from devtools.demo.depth import Depth
from devtools.demo.figures import Evidence, LedgerBatch, LedgerSend
from devtools.demo.load import Posted, refusals
from devtools.stack import Stack

_SENDS = """
SELECT s.id::text, t.slug, s.category, s.rail, s.status, s.blast_id IS NOT NULL,
       extract(epoch FROM s.created_at)::float8, extract(epoch FROM s.accepted_at)::float8
FROM messaging_sends s JOIN core_tenants t ON t.id = s.tenant_id
"""
_BATCHES = """
SELECT rail, state, send_ids::text[], extract(epoch FROM created_at)::float8, attempts FROM messaging_batches
"""
_BLAST = "SELECT planned, extract(epoch FROM launched_at)::float8 FROM messaging_blasts"
_OPEN = "SELECT count(*) FROM messaging_sends WHERE status IN ('scheduled', 'queued', 'sending')"
_ACCEPTED = """
SELECT id::text, extract(epoch FROM accepted_at - created_at)::float8 FROM messaging_sends
WHERE id = ANY (%s::uuid[]) AND accepted_at IS NOT NULL
"""


_DEPTHS = """
SELECT extract(epoch FROM clock_timestamp())::float8,
       coalesce(sum(due) FILTER (WHERE rail = 'transactional'), 0)::int,
       coalesce(sum(due) FILTER (WHERE rail = 'marketing'), 0)::int
FROM (SELECT rail, count(*) AS due FROM messaging_sends WHERE status = 'queued' AND blast_id IS NULL GROUP BY rail
      UNION ALL
      SELECT rail, (SELECT count(*) FROM messaging_sends s WHERE s.blast_id = b.id AND s.status = 'queued')
      FROM messaging_blasts b) each
"""
_VERSION = "SHOW server_version"


class Ledger:
    """A connection of the demo's own to the database."""

    def __init__(self, database_url: str) -> None:
        self._connection = psycopg.connect(database_url, autocommit=True, application_name="demo")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self._connection.close()

    def open_sends(self) -> int:
        """Sends that are not at their end yet. Reads the whole table: not while something is measured."""
        return int(self._rows(_OPEN)[0][0])

    def accepted(self, ids: Collection[str]) -> dict[str, float]:
        """Of these sends, those that were accepted → seconds from submit to acceptance."""
        return dict(self._rows(_ACCEPTED, [list(ids)])) if ids else {}

    def depths(self) -> Depth:
        """How many sends are due on each rail, now. Each part of it is read from an index of due sends alone."""
        return Depth(*self._rows(_DEPTHS)[0])

    def version(self) -> str:
        """PostgreSQL's, e.g. `16.2`."""
        return str(self._rows(_VERSION)[0][0]).split()[0]

    def blast(self) -> tuple[int, float]:
        """Planned sends, and when it was launched, of the one blast there is."""
        ((planned, launched_at),) = self._rows(_BLAST)
        return planned, launched_at

    def sends(self) -> list[LedgerSend]:
        return [LedgerSend(*row) for row in self._rows(_SENDS)]

    def batches(self) -> list[LedgerBatch]:
        return [
            LedgerBatch(rail, state, tuple(ids), at, attempts)
            for rail, state, ids, at, attempts in self._rows(_BATCHES)
        ]

    def _rows(self, sql: str, parameters: list[Any] | None = None) -> list[Any]:
        return self._connection.execute(sql, parameters).fetchall()


def spent_tokens(redis_url: str) -> int:
    """Request tokens that the governor has handed out and not got back."""
    with redis.Redis.from_url(redis_url) as client:
        return int(cast("bytes | None", client.hget("{gov:resend}:state", "spent")) or 0)


def redis_version(redis_url: str) -> str:
    with redis.Redis.from_url(redis_url) as client:
        return str(cast("dict[str, Any]", client.info("server"))["redis_version"])


def collect(
    stack: Stack,
    ledger: Ledger,
    posted: list[Posted],
    *,
    limit: int,
    recipients: int,
    timed_out: bool,
    depths: Sequence[Depth] = (),
) -> Evidence:
    planned, launched_at = ledger.blast()
    stats = stack.sandbox.stats()
    by_status: Mapping[str, int] = stats["by_status"]
    at_provider: list[tuple[str | None, int]] = []
    accepting: dict[int, float] = {}
    for line in stack.sandbox.log():
        at_provider.append((line["tags"].get("send_id"), line["request"]))
        accepting[line["request"]] = line["accepted_at"]
    return Evidence(
        limit=limit,
        recipients=recipients,
        rejected=recipients - planned,
        launched_at=launched_at,
        submitted={p.send_id: p.tenant for p in posted if p.send_id is not None},
        refused=refusals(posted),
        post_seconds=[p.seconds for p in posted],
        sends=ledger.sends(),
        batches=ledger.batches(),
        at_provider=at_provider,
        requests=stats["requests_received"],
        too_many=by_status.get("429", 0),
        tokens=spent_tokens(stack.redis_url),
        timed_out=timed_out,
        depths=depths,
        accepting=accepting,
        too_many_per_second=[(second, count) for second, count in stats["too_many_per_second"]],
    )
