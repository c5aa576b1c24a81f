"""A tenant's bucket may be for one rail. The default that was seeded for all tenants goes, unless somebody has changed it: what is
built in follows the provider's limit (docs/decisions/0013-a-tenant-s-share-of-a-rail.md)."""

from django.db import migrations, models
from django.db.models import Q

from messaging.domain.rails import Rail

SEEDED = {
    "provider": "resend",
    "scope": "tenant",
    "unit": "send",
    "tenant": None,
    "capacity": 1000.0,
    "refill_per_second": 1000.0,
    "reserve": 0.0,
}


def drop_the_seeded_default(apps, schema_editor):
    apps.get_model("messaging", "RateLimitBucket").objects.filter(rail=None, **SEEDED).delete()


def seed_it_again(apps, schema_editor):
    """And what only this version understands goes."""
    bucket = apps.get_model("messaging", "RateLimitBucket")
    bucket.objects.exclude(rail=None).delete()
    key = {name: SEEDED[name] for name in ("provider", "scope", "unit", "tenant")}
    bucket.objects.get_or_create(**key, defaults=SEEDED)
    schema_editor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # the table is altered next


class Migration(migrations.Migration):
    dependencies = [("messaging", "0009_live_rows")]

    operations = [
        migrations.AlterModelOptions(
            name="ratelimitbucket",
            options={"ordering": ["provider", "scope", "tenant_id", "rail"], "verbose_name": "rate limit bucket"},
        ),
        migrations.AddField(
            model_name="ratelimitbucket",
            name="rail",
            field=models.CharField(
                blank=True,
                choices=[("transactional", "transactional rail"), ("marketing", "marketing rail")],
                help_text="A tenant's bucket may be for one rail. Empty: for both.",
                max_length=16,
                null=True,
            ),
        ),
        migrations.RemoveConstraint(model_name="ratelimitbucket", name="messaging_buckets_one"),
        migrations.AddConstraint(
            model_name="ratelimitbucket",
            constraint=models.UniqueConstraint(
                fields=("provider", "scope", "tenant", "rail", "unit"),
                name="messaging_buckets_one",
                nulls_distinct=False,
                violation_error_message="There is such a bucket already.",
            ),
        ),
        migrations.AddConstraint(
            model_name="ratelimitbucket",
            constraint=models.CheckConstraint(
                name="messaging_buckets_rail_of_tenant",
                condition=Q(rail=None) | Q(scope="tenant", rail__in=[rail.value for rail in Rail], reserve=0),
                violation_error_message="Only a tenant's bucket names a rail, and it has nothing to reserve for the other one.",
            ),
        ),
        migrations.RunPython(drop_the_seeded_default, seed_it_again),
    ]
