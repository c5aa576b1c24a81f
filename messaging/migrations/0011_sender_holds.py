"""Sender holds know when they were written, and sends for which of them they wait."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
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
    ]
