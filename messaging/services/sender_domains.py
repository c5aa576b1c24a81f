"""In whose name a tenant may send (DESIGN invariant 11)."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from messaging.domain.errors import Forbidden
from messaging.models import SenderDomain

#: Seconds for which a claim believes what it has read: a domain that was taken from a tenant is used no longer than that.
TTL = 1.0
_KEPT = 20_000  # tenants

_lock = threading.Lock()
_cache: dict[int, tuple[float, frozenset[str]]] = {}


def allowed(tenants: Collection[int]) -> dict[int, frozenset[str]]:
    """The domains of each tenant, as they were at most `TTL` seconds ago: what a claim asks."""
    now = time.monotonic()
    with _lock:
        found = {tenant: _cache[tenant][1] for tenant in tenants if tenant in _cache and _cache[tenant][0] > now - TTL}
    missing = [tenant for tenant in tenants if tenant not in found]
    if missing:
        read: dict[int, set[str]] = {tenant: set() for tenant in missing}
        for tenant, domain in SenderDomain.objects.filter(tenant_id__in=missing).values_list("tenant_id", "domain"):
            read[tenant].add(domain)
        fresh = {tenant: frozenset(domains) for tenant, domains in read.items()}
        with _lock:
            if len(_cache) > _KEPT:
                _cache.clear()
            _cache.update({tenant: (now, domains) for tenant, domains in fresh.items()})
        found |= fresh
    return found


def forget() -> None:
    """Read again at the next call: for tests, and for whoever has just changed a domain."""
    with _lock:
        _cache.clear()


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
