"""In which categories a tenant may send, by which key, and how large a blast may be (DESIGN invariant 11).

A category decides who waits for whom. So that nobody calls a newsletter transactional, a blast is marketing unless the
operator says more, and a larger one than he allows is refused while it is planned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from core.models import ApiKey
from messaging.domain.errors import Forbidden
from messaging.domain.rails import Category
from messaging.models import KeyAllowance, TenantAllowance


@dataclass(frozen=True, slots=True)
class Allowance:
    categories: frozenset[Category]
    blast_categories: frozenset[Category]

    @classmethod
    def of(cls, tenant: TenantAllowance | None, key: KeyAllowance | None = None) -> Self:
        """What the rows say together; a missing one says nothing."""
        tenant = tenant or TenantAllowance()
        may = _known(tenant.categories) or frozenset(Category)
        if key is not None and key.categories:
            may &= _known(key.categories)
        return cls(may, may & (_known(tenant.blast_categories) or {Category.MARKETING}))

    def require(self, categories: Iterable[Category]) -> None:
        """Raise Forbidden unless sends may be of `categories`."""
        if not self.categories.issuperset(categories):
            raise _refused("Sends", self.categories)

    def require_blast(self, category: str) -> None:
        """Raise Forbidden unless a blast may be of `category`."""
        if category not in self.blast_categories:
            raise _refused("Blasts", self.blast_categories)


def allowance_of(tenant_id: int) -> Allowance:
    """The tenant's, by whichever way it sends. One query."""
    return Allowance.of(TenantAllowance.objects.filter(tenant_id=tenant_id).first())


def allowance_of_key(key: ApiKey) -> Allowance:
    """What may be sent with `key`. No query if it was read together with `ALLOWANCES`."""
    return Allowance.of(getattr(key.tenant, "allowance", None), getattr(key, "allowance", None))


#: For `select_related` of an `ApiKey`.
ALLOWANCES = ("tenant__allowance", "allowance")


def _known(names: Iterable[str]) -> frozenset[Category]:
    return frozenset(Category(name) for name in names)


def _refused(what: str, may: frozenset[Category]) -> Forbidden:
    listed = ", ".join(category.value for category in Category if category in may) or "none"
    return Forbidden(
        "category_not_allowed",
        f"{what} in this category are not allowed here. Allowed: {listed}. The operator can allow more.",
        field="category",
    )
