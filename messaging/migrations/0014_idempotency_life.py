"""An idempotency key is kept as long as what it was used for is open or redrivable (`messaging.clock.keys`)."""

from datetime import timedelta

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    # The defaults are constants to the server: no row is written again.
    atomic = False
    dependencies = [("messaging", "0013_allowed_categories")]

    operations = [
        migrations.AddField(
            model_name="idempotencykey",
            name="keep_until",
            field=models.DateTimeField(db_default=Now() + timedelta(days=7, hours=1)),
        ),
        migrations.AddField(
            model_name="idempotencykey",
            name="over",
            field=models.BooleanField(db_default=False),
        ),
        AddIndexConcurrently(
            model_name="idempotencykey",
            index=models.Index(fields=["keep_until"], name="messaging_idempotency_due"),
        ),
        RemoveIndexConcurrently(model_name="idempotencykey", name="messaging_idempotency_age"),
    ]
