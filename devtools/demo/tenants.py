"""Two tenants with a sender domain and an API key, and a provider limit: the demo's starting point.

Run as `python -m devtools.demo.tenants RATE` in the environment of the demo's stack, because it needs Django and the
demo's own process must not load the settings of another database. Prints `{slug: api key}` as JSON, into a pipe.
"""

from __future__ import annotations

import json
import sys

#: Tenant A blasts and sends login codes, tenant B sends login codes.
TENANTS = {"acme": "Acme", "bistro": "Bistro"}


def sender(slug: str) -> str:
    """Whom the tenant sends as. `.example` is reserved: nobody is written to, whatever happens."""
    return f"{TENANTS[slug]} <hello@{slug}.example>"


def set_limits(rate: int) -> None:
    """The provider's limit in requests/s, by the rule for a limit of n. What a tenant may use follows from it."""
    from messaging.models import RateLimitBucket

    RateLimitBucket.objects.filter(provider="resend", scope="global", unit="request").update(
        capacity=1 + 0.02 * rate, refill_per_second=0.98 * rate
    )


def set_up(rate: int) -> dict[str, str]:
    from core.models import ApiKey, Tenant
    from messaging.models import SenderDomain, TenantAllowance

    set_limits(rate)
    keys: dict[str, str] = {}
    for slug, name in TENANTS.items():
        tenant = Tenant.objects.create(slug=slug, name=name)
        SenderDomain.objects.create(tenant=tenant, domain=f"{slug}.example")
        # For the load profile that floods the transactional rail with one list.
        TenantAllowance.objects.create(
            tenant=tenant, blast_categories=["marketing", "product"], max_priority_blast=1_000_000
        )
        _, keys[slug] = ApiKey.issue(tenant, "demo")
    return keys


if __name__ == "__main__":
    import django

    django.setup()
    print(json.dumps(set_up(int(sys.argv[1]))))
