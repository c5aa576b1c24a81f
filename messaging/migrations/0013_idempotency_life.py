"""An idempotency key is kept as long as what it was used for is open or redrivable (`messaging.ledger.expired_keys`)."""

from datetime import timedelta

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("messaging", "0012_allowed_categories")]

    operations = [  # the defaults are constants to the server: no row is written again
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
    ]
