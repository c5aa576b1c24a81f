"""Filters of the lists. What they offer is known beforehand or read from a bounded number of rows."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest

from core.models import DeadLetter, Tenant
from messaging.models import Blast

#: Tenants in the side bar. Of more than these, the others are reached from the tenant's own page.
_TENANTS = 50
#: The newest dead letters, of which the reasons are offered.
_LETTERS = 1_000


class _Filter(admin.SimpleListFilter):
    """Narrows by `field`, which is also the parameter's name unless another is given."""

    field: ClassVar[str]
    offered: ClassVar[frozenset[str] | None] = None  # None: any text

    def value(self) -> str | None:
        """Raises IncorrectLookupParameters for what was never offered, and for what no text of a database can hold."""
        value = super().value()
        if value is not None and ("\0" in value or (self.offered is not None and value not in self.offered)):
            raise IncorrectLookupParameters
        return value

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(**{self.field: self.value()})


def choice(name: str, values: Iterable[StrEnum]) -> type[admin.SimpleListFilter]:
    """A filter for a field that has one of these values."""
    labels = {str(value): str(value).replace("_", " ") for value in values}

    class Choice(_Filter):
        title = parameter_name = field = name
        offered = frozenset(labels)

        def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
            return list(labels.items())

    return Choice


class TenantFilter(_Filter):
    """By the tenant's short name; narrows by its id, which is what the indexes begin with."""

    title = parameter_name = "tenant"
    tenant_id: int | None = None

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        offered = dict(Tenant.objects.values_list("slug", "pk")[:_TENANTS])
        if (chosen := self.value()) is not None:
            if chosen not in offered:
                offered |= dict(Tenant.objects.filter(slug=chosen).values_list("slug", "pk"))
            self.tenant_id = offered.get(chosen)
        return [(slug, slug) for slug in sorted(offered)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.none() if self.tenant_id is None else queryset.filter(tenant_id=self.tenant_id)


class BlastFilter(_Filter):
    """Set by the links that lead to a blast's sends; nothing is offered."""

    title = parameter_name = "blast"
    field = "blast"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = self.value()
        if chosen is None:
            return []
        try:
            name = Blast.objects.filter(pk=UUID(chosen)).values_list("name", flat=True).first()
        except ValueError as error:
            raise IncorrectLookupParameters(error) from error
        return [(chosen, name or chosen)]


class ReasonFilter(_Filter):
    title = parameter_name = field = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        found = set(DeadLetter.objects.order_by("-pk").values_list("reason", flat=True)[:_LETTERS])
        if chosen := self.value():
            found.add(chosen)
        return [(reason, reason) for reason in sorted(found)]
