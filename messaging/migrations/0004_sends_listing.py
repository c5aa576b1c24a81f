"""Indexes for lists of a tenant's sends (`messaging.ledger.listing`)."""

from django.db import migrations, models

NEWEST = models.OrderBy(models.F("id"), descending=True, nulls_last=True)


class Migration(migrations.Migration):
    dependencies = [("messaging", "0003_blast_counts")]

    operations = [
        migrations.AddIndex(
            "send",
            models.Index(models.F("tenant"), models.F("priority"), NEWEST, name="messaging_sends_tenant"),
        ),
        migrations.AddIndex(
            "send",
            models.Index(
                *(models.F("tenant"), models.F("priority"), models.F("status"), NEWEST),
                name="messaging_sends_tenant_status",
                condition=models.Q(("status__in", ["queued", "sending"]), _negated=True),
            ),
        ),
        migrations.AddIndex(
            "send",
            models.Index(
                *(models.F("tenant"), models.F("fingerprint"), NEWEST),
                name="messaging_sends_tenant_single",
                condition=models.Q(("blast", None)),
            ),
        ),
    ]
