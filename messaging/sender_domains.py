"""In whose name a tenant may send (DESIGN invariant 11)."""

from __future__ import annotations

from messaging.errors import Forbidden
from messaging.models import SenderDomain


def require_sender_domains(tenant_id: int, domains: set[str]) -> None:
    """Raise Forbidden unless every one of `domains` (lower case, ASCII) is a sender domain of the tenant."""
    allowed = SenderDomain.objects.filter(tenant_id=tenant_id, domain__in=domains).values_list("domain", flat=True)
    if domains - set(allowed):
        raise Forbidden(
            "sender_domain_not_allowed",
            "The domain of `from` is not one of your sender domains. Ask the operator to add it, or use another `from`.",
            field="from",
        )


def require_sender_domain(tenant_id: int, domain: str) -> None:
    require_sender_domains(tenant_id, {domain})
