"""`python -m devtools.chaos.inside`: the application that uses the Python API, in the environment of the stack.

Spoken to as `devtools.bench.inside` is. Errors go back to the caller, who tries again as an application would.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import close_old_connections

from devtools.bench.inside import serve
from devtools.bench.seed import tenant
from devtools.demo.tenants import set_limits
from messaging.services.submit import SendRequest, submit_many

_TEXT = "Dear {{ name }}, your parcel is on its way."


def set_up(rate: int, slugs: Sequence[str]) -> dict[str, str]:
    """Tenants, each with a sender domain and an API key, and the limits. Slug → key."""
    from core.models import ApiKey

    set_limits(rate)
    return {slug: ApiKey.issue(tenant(slug), "chaos")[1] for slug in slugs}


def product(slug: str, recipients: Sequence[str]) -> list[str]:
    """One product e-mail to each in one `submit_many`; the ids. Each recipient's address is its idempotency key."""
    close_old_connections()
    who = tenant(slug)
    requests = [
        SendRequest(
            to=to,
            from_=f"shop@{slug}.example",
            subject="On its way",
            text=_TEXT,
            category="product",
            variables={"name": to.partition("@")[0]},
            idempotency_key=to,
        )
        for to in recipients
    ]
    return [str(sent.id) for sent in submit_many(who, requests)]


if __name__ == "__main__":
    serve({"set_up": set_up, "product": product})
