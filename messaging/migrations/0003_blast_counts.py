"""Counts of a blast's sends by status, kept by a trigger and the clock; uploads of recipients, with rejects of each."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

# One statement, one row for each (blast, status) that it changed, under the number of its transaction: a second statement
# of the transaction adds to its own row, and nobody else ever touches it. A statement about single sends writes nothing.
# No trigger on DELETE: a count says what became of the sends, also when old ones are deleted one day.
COUNT_SENDS = """
CREATE FUNCTION messaging_count_sends() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO messaging_blast_deltas AS d (xid, blast_id, status, delta, at)
        SELECT pg_current_xact_id()::text::bigint, n.blast_id, n.status, count(*), clock_timestamp()
        FROM new_sends n WHERE n.blast_id IS NOT NULL
        GROUP BY n.blast_id, n.status
        ON CONFLICT (xid, blast_id, status) DO UPDATE SET delta = d.delta + excluded.delta;
    ELSE
        INSERT INTO messaging_blast_deltas AS d (xid, blast_id, status, delta, at)
        SELECT pg_current_xact_id()::text::bigint, c.blast_id, c.status, sum(c.n), clock_timestamp()
        FROM (
            SELECT blast_id, status, 1 AS n FROM new_sends WHERE blast_id IS NOT NULL
            UNION ALL
            SELECT blast_id, status, -1 FROM old_sends WHERE blast_id IS NOT NULL
        ) c
        GROUP BY c.blast_id, c.status HAVING sum(c.n) <> 0
        ON CONFLICT (xid, blast_id, status) DO UPDATE SET delta = d.delta + excluded.delta;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER messaging_sends_inserted AFTER INSERT ON messaging_sends
    REFERENCING NEW TABLE AS new_sends FOR EACH STATEMENT EXECUTE FUNCTION messaging_count_sends();
CREATE TRIGGER messaging_sends_updated AFTER UPDATE ON messaging_sends
    REFERENCING OLD TABLE AS old_sends NEW TABLE AS new_sends FOR EACH STATEMENT EXECUTE FUNCTION messaging_count_sends();
"""
DO_NOT_COUNT = """
DROP TRIGGER messaging_sends_updated ON messaging_sends;
DROP TRIGGER messaging_sends_inserted ON messaging_sends;
DROP FUNCTION messaging_count_sends();
"""

# Rows that live for half a second: vacuumed by hundreds, not by a share of the table; and no exclusive lock for giving
# space back that is needed again at once.
VACUUM = """
ALTER TABLE messaging_blast_deltas SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0, vacuum_truncate = off);
ALTER TABLE messaging_blast_counts SET (fillfactor = 50);
ALTER TABLE messaging_blast_paces SET (fillfactor = 50);
"""

# What there was before is counted by the next migration, beside full traffic.
COUNT_UPLOADS = """
INSERT INTO messaging_blast_uploads (blast_id, number, rows_read, planned, duplicates, rejected, created_at, finished_at)
SELECT id, 1, rows_read, planned, duplicates, rejected, created_at, launched_at FROM messaging_blasts WHERE rows_read > 0;
"""


class Migration(migrations.Migration):
    dependencies = [("messaging", "0002_defaults")]

    operations = [
        migrations.CreateModel(
            name="BlastCount",
            fields=[
                ("pk", models.CompositePrimaryKey("blast_id", "status", blank=True, editable=False, primary_key=True, serialize=False)),
                ("blast_id", models.UUIDField()),
                ("status", models.CharField(max_length=16)),
                ("n", models.BigIntegerField()),
            ],
            options={"db_table": "messaging_blast_counts"},
        ),
        migrations.CreateModel(
            name="BlastDelta",
            fields=[
                ("pk", models.CompositePrimaryKey("xid", "blast_id", "status", blank=True, editable=False, primary_key=True, serialize=False)),
                ("xid", models.BigIntegerField()),
                ("blast_id", models.UUIDField()),
                ("status", models.CharField(max_length=16)),
                ("delta", models.BigIntegerField()),
                ("at", models.DateTimeField()),
            ],
            options={"db_table": "messaging_blast_deltas"},
        ),
        migrations.CreateModel(
            name="BlastFold",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("floor", models.BigIntegerField(default=0)),
            ],
            options={"db_table": "messaging_blast_fold"},
        ),
        migrations.CreateModel(
            name="BlastPace",
            fields=[
                ("pk", models.CompositePrimaryKey("blast_id", "at", blank=True, editable=False, primary_key=True, serialize=False)),
                ("blast_id", models.UUIDField()),
                ("at", models.DateTimeField()),
                ("n", models.BigIntegerField()),
            ],
            options={"db_table": "messaging_blast_paces"},
        ),
        migrations.CreateModel(
            name="BlastUpload",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.IntegerField()),
                ("rows_read", models.BigIntegerField(default=0)),
                ("planned", models.BigIntegerField(default=0)),
                ("duplicates", models.BigIntegerField(default=0)),
                ("rejected", models.BigIntegerField(default=0)),
                ("lease_until", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("finished_at", models.DateTimeField(null=True)),
                ("blast", models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="uploads", to="messaging.blast")),
            ],
            options={"db_table": "messaging_blast_uploads"},
        ),
        migrations.AddConstraint(
            model_name="blastupload",
            constraint=models.UniqueConstraint(fields=("blast", "number"), name="messaging_blast_uploads_one"),
        ),
        migrations.RemoveConstraint(model_name="blastreject", name="messaging_blast_rejects_one"),
        migrations.AddField(
            model_name="blastreject",
            name="upload",
            field=models.IntegerField(default=1, help_text="Number of the list within the blast."),
        ),
        migrations.SeparateDatabaseAndState(  # the next migration builds its index, without keeping a planner waiting
            state_operations=[
                migrations.AddConstraint(
                    model_name="blastreject",
                    constraint=models.UniqueConstraint(
                        fields=("blast", "upload", "line"), name="messaging_blast_rejects_one"
                    ),
                ),
            ]
        ),
        migrations.RunSQL(VACUUM, migrations.RunSQL.noop),
        migrations.RunSQL(COUNT_SENDS, DO_NOT_COUNT),
        migrations.RunSQL(COUNT_UPLOADS, migrations.RunSQL.noop),
    ]
