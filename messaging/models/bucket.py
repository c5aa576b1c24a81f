from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from core.models import Tenant
from messaging.domain.rails import Rail


class RateLimitBucket(models.Model):
    """Configuration of a token bucket. Live levels are in Redis only, and nowhere else is there configuration.

    `scope = global`: the provider's own limit, shared by all. `unit = request` counts requests (required: a provider
    without such a row is not sent to), `unit = send` its quota.
    `scope = tenant`: a tenant's fair use, in sends; without `tenant` it is the default for all who have none of their own. With
    `rail` it is for that rail alone; one without is for what the other rows do not name, and both rails take from it.
    """

    class Scope(models.TextChoices):
        GLOBAL = "global", "global (the provider's limit)"
        TENANT = "tenant", "tenant (fair use)"

    class Unit(models.TextChoices):
        REQUEST = "request", "requests"
        SEND = "send", "sends"

    class OfRail(models.TextChoices):
        TRANSACTIONAL = Rail.TRANSACTIONAL.value, "transactional rail"
        MARKETING = Rail.MARKETING.value, "marketing rail"

    provider = models.CharField(max_length=32, help_text="Name of the adapter, e.g. resend.")
    scope = models.CharField(max_length=8, choices=Scope.choices)
    tenant = models.ForeignKey(
        Tenant, null=True, blank=True, on_delete=models.CASCADE, help_text="Empty: the default of all tenants."
    )
    rail = models.CharField(
        max_length=16,
        choices=OfRail.choices,
        null=True,
        blank=True,
        help_text="A tenant's bucket may be for one rail. Empty: for both.",
    )
    unit = models.CharField(max_length=8, choices=Unit.choices)
    capacity = models.FloatField(help_text="Tokens a full bucket holds. For a limit of n/s: 1 + 0.02 n.")
    refill_per_second = models.FloatField(help_text="Tokens that come back each second. For a limit of n/s: 0.98 n.")
    reserve = models.FloatField(default=0, help_text="Tokens that only the transactional rail may take.")
    updated_at = models.DateTimeField(db_default=Now(), auto_now=True)

    class Meta:
        db_table = "messaging_rate_limit_buckets"
        verbose_name = "rate limit bucket"
        ordering = ["provider", "scope", "tenant_id", "rail"]
        constraints = [
            models.UniqueConstraint(
                name="messaging_buckets_one",
                fields=["provider", "scope", "tenant", "rail", "unit"],
                nulls_distinct=False,
                violation_error_message="There is such a bucket already.",
            ),
            models.CheckConstraint(
                name="messaging_buckets_scope_unit",
                condition=Q(scope="global", unit__in=["request", "send"]) | Q(scope="tenant", unit="send"),
                violation_error_message="A tenant bucket counts sends; requests are counted by the global bucket.",
            ),
            models.CheckConstraint(
                name="messaging_buckets_tenant_scope",
                condition=Q(scope="tenant") | Q(tenant=None),
                violation_error_message="A global bucket belongs to no tenant.",
            ),
            models.CheckConstraint(
                name="messaging_buckets_rail_of_tenant",
                condition=Q(rail=None) | Q(scope="tenant", rail__in=[rail.value for rail in Rail], reserve=0),
                violation_error_message="Only a tenant's bucket names a rail, and it has nothing to reserve for the other one.",
            ),
            models.CheckConstraint(
                name="messaging_buckets_refill_positive",
                condition=Q(refill_per_second__gte=1e-6) & Q(refill_per_second__lte=1_000_000),
                violation_error_message="The refill must be above 0: from 0.000001 to 1,000,000 per second.",
            ),
            models.CheckConstraint(
                name="messaging_buckets_reserve_fits",
                condition=Q(reserve__gte=0) & Q(capacity__gte=F("reserve") + 1) & Q(capacity__lte=1_000_000_000),
                violation_error_message="The capacity must be at least the reserve + 1, else marketing never gets a token.",
            ),
            models.CheckConstraint(
                name="messaging_buckets_known_values",
                condition=Q(scope__in=["global", "tenant"]) & Q(unit__in=["request", "send"]) & ~Q(provider=""),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.provider} {self.scope} {self.unit}"
