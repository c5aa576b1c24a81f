"""The indexes of 0009 to 0014, and what 0014 demands of batches: beside full traffic, however large the tables are.

Nothing else belongs here: it is no one transaction, and is run again if it is interrupted. What the code of before reads by
goes last.
"""

from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations, models

from messaging.migrations._concurrently import AddIndexConcurrently, RemoveIndexConcurrently


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("messaging", "0014_preparing")]

    operations = [
        ValidateConstraint("batch", "messaging_batches_state"),
        ValidateConstraint("batch", "messaging_batches_prepared_has_digest"),
        AddIndexConcurrently(
            "batch",
            models.Index(
                fields=["channel", "rail", "id"],
                name="messaging_batches_unended",
                condition=models.Q(state__in=["claimed", "preparing", "unknown"]),
            ),
        ),
        AddIndexConcurrently(
            "blast",
            models.Index(
                fields=["id"],
                name="messaging_blasts_moving",
                condition=models.Q(("finished_at", None), ("state__in", ["running", "cancelled"])),
            ),
        ),
        AddIndexConcurrently(
            "blast",
            models.Index(
                fields=["created_at"], name="messaging_blasts_drafts", condition=models.Q(("state", "planning"))
            ),
        ),
        AddIndexConcurrently(
            "tenantlane",
            models.Index(
                fields=["id"],
                name="messaging_tenant_lanes_idle",
                condition=models.Q(("hold_code", ""), ("isolated", False), ("paused", False)),
            ),
        ),
        AddIndexConcurrently(  # nearly always empty
            "send",
            models.Index(
                fields=["held_by", "priority", "id"],
                name="messaging_sends_held",
                condition=models.Q(("held_by__isnull", False), ("status", "scheduled")),
            ),
        ),
        AddIndexConcurrently(
            "idempotencykey", models.Index(fields=["keep_until"], name="messaging_idempotency_due")
        ),
        RemoveIndexConcurrently("batch", "messaging_batches_open"),
        RemoveIndexConcurrently("blast", "messaging_blasts_live"),
        RemoveIndexConcurrently("blast", "messaging_blasts_ring"),
        RemoveIndexConcurrently("idempotencykey", "messaging_idempotency_age"),
    ]
