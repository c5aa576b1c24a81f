"""Folding: what the ledger's trigger appended (`messaging.models.counts`) becomes part of the sums, and is deleted."""

from __future__ import annotations

from django.db import transaction

from core.db.cursor import ledger_cursor
from messaging.ledger.counts import FLOOR, PACE_SECONDS, RATE_WINDOW

#: Delta rows of one transaction. It takes a few milliseconds and keeps nobody waiting but another clock.
LIMIT = 5_000
#: Transactions of one beat: 50,000 rows are what a provider that takes 10,000 sends a second could cause at worst.
ROUNDS = 10

_MINE = "SELECT FROM messaging_blast_fold WHERE id = 1 FOR UPDATE SKIP LOCKED"
_FIRST_TIME = "INSERT INTO messaging_blast_fold (id, floor) VALUES (1, 0) ON CONFLICT DO NOTHING"

# In the order of transactions, the oldest first; rows of transactions that have not ended are not there to be seen.
_FOLD = f"""
WITH gone AS (
    DELETE FROM messaging_blast_deltas WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM messaging_blast_deltas WHERE xid >= ({FLOOR}) ORDER BY xid LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ))
    RETURNING blast_id, status, delta, at
), summed AS (
    INSERT INTO messaging_blast_counts AS c (blast_id, status, n)
    SELECT blast_id, status, sum(delta) FROM gone GROUP BY blast_id, status ORDER BY blast_id, status
    ON CONFLICT (blast_id, status) DO UPDATE SET n = c.n + excluded.n
), paced AS (
    INSERT INTO messaging_blast_paces AS p (blast_id, at, n)
    SELECT blast_id, date_bin(%(step)s * interval '1 second', at, 'epoch') AS bin, sum(delta)
    FROM gone WHERE status = 'sent' GROUP BY blast_id, bin ORDER BY blast_id, bin
    ON CONFLICT (blast_id, at) DO UPDATE SET n = p.n + excluded.n
)
SELECT count(*) FROM gone
"""

# A transaction below this snapshot's xmin has ended: what it left is seen here, or was folded. So the oldest row that is
# seen, or xmin, is a floor for ever. Not written while nothing happens.
_RAISE = f"""
UPDATE messaging_blast_fold SET floor = f.floor
FROM (SELECT least(
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
    (SELECT min(xid) FROM messaging_blast_deltas WHERE xid >= ({FLOOR}))
) AS floor) f
WHERE id = 1
"""


def fold_deltas() -> int:
    """Fold what has been committed. Returns the number of rows. A second clock finds the first one at it, and leaves."""
    folded = 0
    for _ in range(ROUNDS):
        with transaction.atomic(), ledger_cursor() as cursor:
            if cursor.run(_MINE) == 0 and not _begin():
                return folded
            row = cursor.one(_FOLD, {"limit": LIMIT, "step": PACE_SECONDS})
            count: int = row[0] if row else 0
            if count:
                cursor.run(_RAISE)
        folded += count
        if count < LIMIT:
            break
    return folded


def _begin() -> bool:
    """The row to lock, if it was not there yet. False: it is there, and another clock has it."""
    with ledger_cursor() as cursor:
        return cursor.run(_FIRST_TIME) == 1


def prune_paces() -> int:
    """What is too old for the rate."""
    with transaction.atomic(), ledger_cursor() as cursor:
        return cursor.run(
            "DELETE FROM messaging_blast_paces WHERE ctid = ANY (ARRAY (SELECT ctid FROM messaging_blast_paces"
            " WHERE at < clock_timestamp() - %(seconds)s * interval '1 second' FOR UPDATE SKIP LOCKED))",
            {"seconds": 2 * RATE_WINDOW},
        )
