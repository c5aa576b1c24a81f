"""A tenant's single sends are a lane of each priority: a row for each (`messaging.models.lane`)."""

from django.db import migrations, models

# What was learned of refusals is learned anew; what somebody paused stays paused, in all priorities of its rail.
SPLIT = """
SET CONSTRAINTS ALL IMMEDIATE;
DELETE FROM messaging_tenant_lanes WHERE NOT paused;
UPDATE messaging_tenant_lanes
SET priority = CASE rail WHEN 'marketing' THEN 2 ELSE 0 END, isolated = false, party = NULL, suspects = 0, convicting = false,
    hold_code = '', hold_detail = '', hold_seconds = 0, held_until = NULL;
INSERT INTO messaging_tenant_lanes (tenant_id, channel, rail, priority, paused, isolated, hold_code, hold_detail, hold_seconds)
SELECT tenant_id, channel, rail, 1, true, false, '', '', 0 FROM messaging_tenant_lanes WHERE rail = 'transactional';
"""
#: So that the old constraint holds again.
JOIN = "DELETE FROM messaging_tenant_lanes WHERE priority = 1"


class Migration(migrations.Migration):
    dependencies = [("messaging", "0007_lane_priority")]

    operations = [
        migrations.RemoveConstraint(model_name="tenantlane", name="messaging_tenant_lanes_one"),
        migrations.RunSQL(SPLIT, JOIN),
        migrations.AlterField(model_name="tenantlane", name="priority", field=models.SmallIntegerField()),
        migrations.AddConstraint(
            model_name="tenantlane",
            constraint=models.UniqueConstraint(
                fields=("tenant", "channel", "rail", "priority"), name="messaging_tenant_lanes_one"
            ),
        ),
    ]
