"""What is live has tables of its own (`messaging.models.live`): hints of blasts, marks of lanes with due sends.

What there is already is written there by 0016, when nobody who wrote before there were triggers is left.
"""

from django.db import migrations, models

# Whoever makes single sends due, by whatever statement, leaves a mark for each lane, and for each blast whose sends go back.
# Whoever changes what opens or closes a lane leaves one, too: it makes the clock look, and whoever searches meanwhile.
MARK = """
CREATE FUNCTION messaging_mark_due() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO messaging_due_lanes (channel, rail, priority, tenant_id)
    SELECT DISTINCT n.channel, n.rail, n.priority, n.tenant_id FROM new_sends n
    WHERE n.status = 'queued' AND n.blast_id IS NULL;
    IF TG_OP = 'UPDATE' THEN  -- what is inserted belongs to a blast that is not running yet
        INSERT INTO messaging_blast_marks (blast_id, low)
        SELECT DISTINCT ON (n.blast_id) n.blast_id, n.id FROM new_sends n
        WHERE n.status = 'queued' AND n.blast_id IS NOT NULL ORDER BY n.blast_id, n.id;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER messaging_sends_due_inserted AFTER INSERT ON messaging_sends
    REFERENCING NEW TABLE AS new_sends FOR EACH STATEMENT EXECUTE FUNCTION messaging_mark_due();
CREATE TRIGGER messaging_sends_due_updated AFTER UPDATE ON messaging_sends
    REFERENCING NEW TABLE AS new_sends FOR EACH STATEMENT EXECUTE FUNCTION messaging_mark_due();

CREATE FUNCTION messaging_mark_lane() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    lane messaging_tenant_lanes := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO messaging_due_lanes (channel, rail, priority, tenant_id)
    VALUES (lane.channel, lane.rail, lane.priority, lane.tenant_id);
    RETURN NULL;
END
$$;
CREATE TRIGGER messaging_tenant_lanes_changed AFTER INSERT OR UPDATE OR DELETE ON messaging_tenant_lanes
    FOR EACH ROW EXECUTE FUNCTION messaging_mark_lane();

CREATE FUNCTION messaging_mark_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO messaging_due_lanes (channel, rail, priority, tenant_id)
    SELECT c.channel, p.rail, p.priority, NEW.id
    FROM (VALUES ('email'), ('sms'), ('push'), ('webhook')) c (channel),
         (VALUES ('transactional', 0), ('transactional', 1), ('marketing', 2)) p (rail, priority);
    RETURN NULL;
END
$$;
CREATE TRIGGER messaging_tenants_changed AFTER UPDATE OF active ON core_tenants
    FOR EACH ROW WHEN (OLD.active IS DISTINCT FROM NEW.active) EXECUTE FUNCTION messaging_mark_tenant();
"""
DO_NOT_MARK = """
DROP TRIGGER messaging_tenants_changed ON core_tenants;
DROP FUNCTION messaging_mark_tenant();
DROP TRIGGER messaging_tenant_lanes_changed ON messaging_tenant_lanes;
DROP FUNCTION messaging_mark_lane();
DROP TRIGGER messaging_sends_due_updated ON messaging_sends;
DROP TRIGGER messaging_sends_due_inserted ON messaging_sends;
DROP FUNCTION messaging_mark_due();
"""

# Rows that live for half a second, or are written with every beat: vacuumed by hundreds, not by a share of the table; room
# beside each hint for its next versions.
VACUUM = """
ALTER TABLE messaging_due_lanes SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0, vacuum_truncate = off);
ALTER TABLE messaging_blast_marks SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0, vacuum_truncate = off);
ALTER TABLE messaging_blast_hints SET (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
"""


class Migration(migrations.Migration):
    dependencies = [("messaging", "0008_lanes_by_priority")]

    operations = [
        migrations.CreateModel(
            name="DueLane",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("channel", models.CharField(max_length=16)),
                ("rail", models.CharField(max_length=16)),
                ("priority", models.SmallIntegerField()),
                ("tenant_id", models.BigIntegerField()),
                ("judged", models.BooleanField(db_default=False)),
                ("closed_until", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "messaging_due_lanes",
                "indexes": [
                    models.Index(
                        fields=["channel", "rail", "priority", "tenant_id", "-id"],
                        name="messaging_due_lanes_ring",
                        condition=models.Q(("closed_until", None)),
                    ),
                    models.Index(
                        fields=["tenant_id", "channel", "rail", "priority", "-id"], name="messaging_due_lanes_one"
                    ),
                    models.Index(
                        fields=["id"], name="messaging_due_lanes_new", condition=models.Q(("judged", False))
                    ),
                    models.Index(
                        fields=["id"],
                        name="messaging_due_lanes_open",
                        condition=models.Q(("closed_until", None), ("judged", True)),
                    ),
                    models.Index(
                        fields=["closed_until"],
                        name="messaging_due_lanes_closed",
                        condition=models.Q(("closed_until__isnull", False)),
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BlastHint",
            fields=[
                ("blast_id", models.UUIDField(primary_key=True, serialize=False)),
                ("channel", models.CharField(max_length=16)),
                ("rail", models.CharField(max_length=16)),
                ("priority", models.SmallIntegerField()),
                ("tenant_id", models.BigIntegerField()),
                ("has_due", models.BooleanField()),
                ("low", models.UUIDField(null=True)),
            ],
            options={
                "db_table": "messaging_blast_hints",
                "indexes": [
                    models.Index(
                        fields=["channel", "rail", "priority", "has_due", "tenant_id", "blast_id"],
                        name="messaging_blast_hints_ring",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="BlastMark",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("blast_id", models.UUIDField()),
                ("low", models.UUIDField()),
            ],
            options={"db_table": "messaging_blast_marks"},
        ),
        migrations.RunSQL(VACUUM, migrations.RunSQL.noop),
        migrations.RunSQL(MARK, DO_NOT_MARK),
    ]
