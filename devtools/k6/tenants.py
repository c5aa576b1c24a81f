"""Many tenants, each with a sender domain and an API key, for the scripts that take `KEYS`.

`python -m devtools.k6.tenants COUNT [PREFIX]`, in the environment of the system that is to have them, because it needs Django.
Prints `[{"name", "key", "from"}]` as JSON: into a file that nobody else can read.
"""

from __future__ import annotations

import json
import sys


def make(count: int, prefix: str) -> list[dict[str, str]]:
    from core.models import ApiKey, Tenant
    from messaging.models import SenderDomain

    made = []
    for number in range(count):
        slug = f"{prefix}{number}"
        tenant = Tenant.objects.create(slug=slug, name=slug.title())
        SenderDomain.objects.create(tenant=tenant, domain=f"{slug}.example")
        _, key = ApiKey.issue(tenant, "k6")
        made.append({"name": slug, "key": key, "from": f"{tenant.name} <hello@{slug}.example>"})
    return made


if __name__ == "__main__":
    import django
    from django.db import transaction

    django.setup()
    with transaction.atomic():
        tenants = make(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "small")
    print(json.dumps(tenants))
