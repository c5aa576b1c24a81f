"""What a tenant and each of its keys may say that a send is. No row: as before, but that blasts are marketing."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import messaging.models.allowance

KNOWN = ["transactional", "product", "marketing"]


def categories(**options):
    return django.contrib.postgres.fields.ArrayField(
        base_field=models.CharField(max_length=16), blank=True, size=None, **options
    )


class Migration(migrations.Migration):
    dependencies = [("core", "0002_dead_actors"), ("messaging", "0011_sender_holds")]

    operations = [
        migrations.CreateModel(
            name="KeyAllowance",
            fields=[
                (
                    "api_key",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="allowance",
                        serialize=False,
                        to="core.apikey",
                    ),
                ),
                ("categories", categories(default=list)),
            ],
            options={
                "db_table": "messaging_key_allowances",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(categories__contained_by=KNOWN), name="messaging_key_allowances_known"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="TenantAllowance",
            fields=[
                (
                    "tenant",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="allowance",
                        serialize=False,
                        to="core.tenant",
                    ),
                ),
                ("categories", categories(default=list)),
                ("blast_categories", categories(default=messaging.models.allowance.marketing_only)),
                ("max_priority_blast", models.PositiveIntegerField(default=1000)),
            ],
            options={
                "db_table": "messaging_tenant_allowances",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(blast_categories__contained_by=KNOWN, categories__contained_by=KNOWN),
                        name="messaging_tenant_allowances_known",
                    )
                ],
            },
        ),
    ]
