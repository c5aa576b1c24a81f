"""Marks and hints (0009) of what was there before; the columns of blasts that the hints replace go.

One transaction: what a `web` of before launches meanwhile has its columns copied, or waits and fails.
"""

from django.db import migrations, models

# The triggers have been there since 0009: what becomes due meanwhile has its own marks.
MARKS = """
INSERT INTO messaging_due_lanes (channel, rail, priority, tenant_id)
SELECT DISTINCT channel, rail, priority, tenant_id FROM messaging_sends WHERE status = 'queued' AND blast_id IS NULL
"""
HINTS = """
INSERT INTO messaging_blast_hints (blast_id, channel, rail, priority, tenant_id, has_due, low)
SELECT id, channel, rail, priority, tenant_id, has_due, low FROM messaging_blasts WHERE state = 'running'
ON CONFLICT DO NOTHING
"""
HINTS_BACK = """
UPDATE messaging_blasts b SET has_due = h.has_due, low = h.low FROM messaging_blast_hints h WHERE b.id = h.blast_id
"""


class Migration(migrations.Migration):
    dependencies = [("messaging", "0015_indexes")]

    operations = [
        migrations.RunSQL(MARKS, migrations.RunSQL.noop),
        # Locks the blasts. The ledger, which may be long, has been read before.
        migrations.AddField("blast", "reason", models.CharField(max_length=64, db_default="", default="", blank=True)),
        migrations.RunSQL(HINTS, HINTS_BACK),
        migrations.RemoveField("blast", "has_due"),
        migrations.RemoveField("blast", "low"),
    ]
