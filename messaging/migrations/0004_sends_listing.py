"""Indexes for lists of a tenant's sends (`messaging.ledger.listing`); and what 0003 leaves to be done beside full traffic.

Nothing here keeps a writer waiting, however large the ledger is. So it is no one transaction: interrupted, it is run again.
"""

from django.db import migrations, models

from messaging.migrations._concurrently import AddIndexConcurrently, is_built

NEWEST = models.OrderBy(models.F("id"), descending=True, nulls_last=True)

# One statement, hence one snapshot: the sends that it counts, and the deltas of the changes that it has seen, which must not be
# folded on top of that. Whoever writes meanwhile leaves deltas that it does not see. The triggers are there since 0003 was
# committed: no change is without one. Not where 0003 has counted already, as it did once.
COUNT_WHAT_THERE_IS = """
WITH seen AS (
    DELETE FROM messaging_blast_deltas WHERE NOT EXISTS (SELECT FROM messaging_blast_counts)
)
INSERT INTO messaging_blast_counts (blast_id, status, n)
SELECT blast_id, status, count(*) FROM messaging_sends
WHERE blast_id IS NOT NULL AND NOT EXISTS (SELECT FROM messaging_blast_counts)
GROUP BY 1, 2
"""


def drop_a_rest(apps, schema_editor):
    is_built(schema_editor, "messaging_blast_rejects_one")


REJECTS_INDEX = """
CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS messaging_blast_rejects_one ON messaging_blast_rejects (blast_id, upload, line)
"""
REJECTS_CONSTRAINT = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_constraint WHERE conname = 'messaging_blast_rejects_one') THEN
        ALTER TABLE messaging_blast_rejects
            ADD CONSTRAINT messaging_blast_rejects_one UNIQUE USING INDEX messaging_blast_rejects_one;
    END IF;
END $$
"""
NO_REJECTS_CONSTRAINT = "ALTER TABLE messaging_blast_rejects DROP CONSTRAINT messaging_blast_rejects_one"


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("messaging", "0003_blast_counts")]

    operations = [
        migrations.RunSQL([COUNT_WHAT_THERE_IS], migrations.RunSQL.noop),
        migrations.RunPython(drop_a_rest, migrations.RunPython.noop, atomic=False),
        migrations.RunSQL([REJECTS_INDEX], migrations.RunSQL.noop),
        migrations.RunSQL([REJECTS_CONSTRAINT], [NO_REJECTS_CONSTRAINT]),
        AddIndexConcurrently(
            "send",
            models.Index(models.F("tenant"), models.F("priority"), NEWEST, name="messaging_sends_tenant"),
        ),
        AddIndexConcurrently(
            "send",
            models.Index(
                *(models.F("tenant"), models.F("priority"), models.F("status"), NEWEST),
                name="messaging_sends_tenant_status",
                condition=models.Q(("status__in", ["queued", "sending"]), _negated=True),
            ),
        ),
        AddIndexConcurrently(
            "send",
            models.Index(
                *(models.F("tenant"), models.F("fingerprint"), NEWEST),
                name="messaging_sends_tenant_single",
                condition=models.Q(("blast", None)),
            ),
        ),
    ]
