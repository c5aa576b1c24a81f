"""Whether the counts of a blast (`messaging.ledger.counts`) are what its sends say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from uuid import UUID

from django.db import transaction

from core.db.cursor import ledger_cursor
from messaging.audit.report import Difference
from messaging.domain.lifecycle import SendStatus
from messaging.ledger.counts import blast_facts

_PAGE = 5_000
# By the unique index that keeps recipients apart; the ledger has no other that holds all sends of a blast.
_STATUSES = f"""
SELECT fingerprint, status FROM messaging_sends
WHERE blast_id = %(blast)s AND fingerprint > %(after)s ORDER BY fingerprint LIMIT {_PAGE}
"""


def wrong_counts(blast: UUID) -> Iterator[Difference]:
    """At most one difference. Its pages share a snapshot, which is held for a second with a blast of a million."""
    with transaction.atomic(durable=True), ledger_cursor() as sql:
        sql.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        owner = sql.one("SELECT tenant_id FROM messaging_blasts WHERE id = %(blast)s", {"blast": blast})
        told = blast_facts(owner[0], blast) if owner else None
        if told is None:
            return
        facts: Counter[str] = Counter()
        after = b""
        while rows := sql.all(_STATUSES, {"blast": blast, "after": after}):
            facts.update(status for _, status in rows)
            after = rows[-1][0]
    wrong = [f"{s} {told.counts[s]}, really {facts[s]}" for s in SendStatus if told.counts[s] != facts[s]]
    if facts.total() != told.planned:
        wrong.append(f"planned {told.planned}, really {facts.total()}")
    if wrong:
        yield Difference("counts", str(blast), "; ".join(wrong))
