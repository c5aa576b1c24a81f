"""Resend's default limit (10 requests a second) and the fair use of a tenant; vacuum settings of the ledger."""

from django.db import migrations

#: capacity 1 + 0.02 n, refill 0.98 n for a limit of n requests/s: why is in docs/decisions/0005-bucket-defaults.md.
RESEND = [
    {"scope": "global", "unit": "request", "capacity": 1.2, "refill_per_second": 9.8},
    {"scope": "tenant", "unit": "send", "capacity": 1000.0, "refill_per_second": 1000.0},
]


def seed(apps, schema_editor):
    bucket = apps.get_model("messaging", "RateLimitBucket")
    for row in RESEND:
        bucket.objects.get_or_create(provider="resend", scope=row["scope"], unit=row["unit"], tenant=None, defaults=row)


class Migration(migrations.Migration):
    dependencies = [("messaging", "0001_initial")]

    operations = [
        migrations.RunPython(seed, migrations.RunPython.noop),
        # Every send changes its status twice soon after it was written: vacuum by thousands of dead rows, not by a
        # fifth of a table that only grows.
        migrations.RunSQL(
            "ALTER TABLE messaging_sends SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,"
            " autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02)",
            "ALTER TABLE messaging_sends RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,"
            " autovacuum_vacuum_insert_scale_factor, autovacuum_analyze_scale_factor)",
        ),
    ]
