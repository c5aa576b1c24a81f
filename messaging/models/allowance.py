"""What a tenant, and each of its keys, may say that a send is. Written by the operator; no row: the defaults."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models

from core.models import ApiKey, Tenant
from messaging.domain.rails import Category

#: Recipients of a blast that is not marketing, where the operator says nothing else.
MAX_PRIORITY_BLAST = 1_000


def marketing_only() -> list[str]:
    return [Category.MARKETING.value]


def _categories(**options: Any) -> Any:
    return ArrayField(models.CharField(max_length=16), blank=True, **options)


def _known(*names: str) -> models.Q:
    known = [category.value for category in Category]
    return models.Q(**{f"{name}__contained_by": known for name in names})


class TenantAllowance(models.Model):
    """A tenant's categories (empty: all), those that a whole blast may have (empty: marketing), and how many recipients a
    blast that is not marketing may have: it goes before every other tenant's marketing, for as long as it takes."""

    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, primary_key=True, related_name="allowance")
    categories = _categories(default=list)
    blast_categories = _categories(default=marketing_only)
    max_priority_blast = models.PositiveIntegerField(default=MAX_PRIORITY_BLAST)

    class Meta:
        db_table = "messaging_tenant_allowances"
        constraints = [
            models.CheckConstraint(
                name="messaging_tenant_allowances_known", condition=_known("categories", "blast_categories")
            )
        ]

    def __str__(self) -> str:
        return str(self.tenant_id)


class KeyAllowance(models.Model):
    """The categories of one API key, among those of its tenant (empty: all of them). For good, as the key itself."""

    api_key = models.OneToOneField(ApiKey, on_delete=models.CASCADE, primary_key=True, related_name="allowance")
    categories = _categories(default=list)

    class Meta:
        db_table = "messaging_key_allowances"
        constraints = [models.CheckConstraint(name="messaging_key_allowances_known", condition=_known("categories"))]

    def __str__(self) -> str:
        return str(self.api_key_id)
