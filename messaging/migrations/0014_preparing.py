"""A claim in two steps: `preparing`, then `claimed`; what is remembered of a death in between. 0015 validates what is demanded here."""

from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models

_STATES = [
    "preparing", "claimed", "unknown", "accepted", "accepted_in_part", "rate_limited", "not_sent", "refused", "credential",
    "ambiguous",
]


class Migration(migrations.Migration):
    dependencies = [("messaging", "0013_idempotency_life")]

    operations = [
        migrations.AddField("batch", "in_hand", models.UUIDField(null=True)),
        migrations.AddField(
            "batch",
            "unanswered",
            models.SmallIntegerField(
                db_default=0, help_text="Attempts in a row whose worker vanished before it recorded an answer."
            ),
        ),
        migrations.AddField("blast", "stalls_until", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("blast", "stalls", models.SmallIntegerField(db_default=0)),
        migrations.AddField("tenantlane", "stalls_until", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("tenantlane", "stalls", models.SmallIntegerField(db_default=0)),
        migrations.AddField("send", "held_since", models.DateTimeField(null=True)),
        migrations.AddField("send", "mishaps", models.SmallIntegerField(db_default=0)),
        migrations.AlterField("batch", "digest", models.BinaryField(max_length=32, null=True)),
        migrations.RemoveConstraint("batch", "messaging_batches_state"),
        AddConstraintNotValid(
            "batch",
            models.CheckConstraint(condition=models.Q(state__in=_STATES), name="messaging_batches_state"),
        ),
        AddConstraintNotValid(
            "batch",
            models.CheckConstraint(
                condition=models.Q(state="preparing") | models.Q(digest__isnull=False),
                name="messaging_batches_prepared_has_digest",
            ),
        ),
    ]
