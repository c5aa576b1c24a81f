"""Sender holds know when they were written, and sends for which of them they wait (nearly always none: the index is empty)."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("messaging", "0010_bucket_rail")]

    operations = [
        migrations.AddField(
            model_name="senderhold",
            name="written_at",
            field=models.DateTimeField(db_default=Now(), editable=False),
        ),
        migrations.AddField(
            model_name="send",
            name="held_by",
            field=models.BigIntegerField(null=True),
        ),
        AddIndexConcurrently(
            model_name="send",
            index=models.Index(
                condition=models.Q(("held_by__isnull", False), ("status", "scheduled")),
                fields=["held_by", "priority", "id"],
                name="messaging_sends_held",
            ),
        ),
    ]
