"""How long an idempotency key is kept: as long as what it was used for is open or can be redriven, and seven days from then on.

A key is looked at when its `keep_until` has passed, a week after it was written and then once a week at most, whatever is in the
ledger: what is open for a year costs 52 looks.
"""

from __future__ import annotations

from django.db import transaction

from core.db.cursor import ledger_cursor
from messaging.domain.lifecycle import OPEN, BlastState, SendStatus
from messaging.ledger.due import NOW

#: Days for which a key is honoured after the end of what it was used for.
KEEP_DAYS = 7
#: Keys of one transaction.
LIMIT = 5_000

_MAY_GO_ON = ", ".join(f"'{status}'" for status in sorted(OPEN | {SendStatus.FAILED, SendStatus.AMBIGUOUS}))

# When a send was cancelled or has expired stands nowhere: the look that finds it over gives its key the seven days. Row by row,
# by key (LIMIT): a join would be free to hash the ledger.
PRUNE = f"""
WITH due AS (
    SELECT id, operation, answer, over FROM messaging_idempotency_keys
    WHERE keep_until <= {NOW} ORDER BY keep_until LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), judged AS (
    SELECT d.id, w.open, CASE
        WHEN w.open OR (w.ended IS NULL AND NOT d.over) THEN clock_timestamp() + %(days)s * interval '1 day'
        ELSE w.ended + %(days)s * interval '1 day'
    END AS keep_until
    FROM due d CROSS JOIN LATERAL (
        SELECT s.status IN ({_MAY_GO_ON}) AS open, s.accepted_at AS ended
        FROM messaging_sends s WHERE d.operation = 'sends' AND s.id = (d.answer->>'id')::uuid
        UNION ALL
        SELECT b.finished_at IS NULL OR (b.state <> '{BlastState.CANCELLED}' AND EXISTS (
                   SELECT FROM messaging_blast_counts c
                   WHERE c.blast_id = b.id AND c.status IN ('{SendStatus.FAILED}', '{SendStatus.AMBIGUOUS}') AND c.n > 0
               )),
               b.finished_at
        FROM messaging_blasts b
        WHERE d.operation IN ('blasts', 'blast_uploads') AND b.id = (d.answer->>'blast_id')::uuid
        LIMIT 1
    ) w
), kept AS (
    UPDATE messaging_idempotency_keys k SET keep_until = j.keep_until, over = NOT j.open
    FROM judged j WHERE k.id = j.id AND j.keep_until > clock_timestamp()
    RETURNING k.id
)
DELETE FROM messaging_idempotency_keys WHERE id = ANY (ARRAY (SELECT id FROM due EXCEPT SELECT id FROM kept))
"""


def prune_keys() -> int:
    """Forget the keys that nobody may ask for any more. Returns how many."""
    with transaction.atomic(), ledger_cursor() as cursor:
        return cursor.run(PRUNE, {"limit": LIMIT, "days": KEEP_DAYS})
