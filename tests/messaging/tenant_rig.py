"""A tenant that may send, and a client that speaks for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.test import Client

from core.models import ApiKey, Tenant
from messaging.ledger import buckets
from messaging.models import RateLimitBucket, Send, SenderDomain

#: The least that a send must say.
BODY: dict[str, Any] = {
    "category": "transactional",
    "to": "ada@example.org",
    "from": "Shop <hello@shop.example>",
    "subject": "Your code",
    "text": "123456",
}


def make_tenant(slug: str = "shop", domain: str = "shop.example") -> Tenant:
    tenant = Tenant.objects.create(slug=slug, name=slug.title())
    SenderDomain.objects.create(tenant=tenant, domain=domain)
    return tenant


def ensure_bucket() -> None:
    """The provider's global bucket. The migration made one; a test that empties the tables has taken it away."""
    RateLimitBucket.objects.get_or_create(
        provider="resend",
        scope="global",
        unit="request",
        tenant=None,
        defaults={"capacity": 1.2, "refill_per_second": 9.8},
    )
    buckets.forget()


@dataclass
class Speaker:
    """Speaks JSON to the API as one tenant."""

    tenant: Tenant
    key: str
    client: Client

    @classmethod
    def of(cls, tenant: Tenant) -> Speaker:
        return cls(tenant, ApiKey.issue(tenant, "test")[1], Client(raise_request_exception=True))

    def headers(self, **more: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", **more}

    def post(self, body: object, path: str = "/v1/messaging/sends", **headers: str) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(path, data, content_type="application/json", headers=self.headers(**headers))

    def send(self, **changes: object) -> Any:
        """POST the smallest body, changed. A change to None takes the field away; `from_` stands for `from`."""
        named = {name.rstrip("_"): value for name, value in changes.items()}
        body = {name: value for name, value in (BODY | named).items() if value is not None}
        return self.post(body)

    def get(self, send_id: object) -> Any:
        return self.client.get(f"/v1/messaging/sends/{send_id}", headers=self.headers())

    def sends(self) -> int:
        return Send.objects.filter(tenant=self.tenant).count()


def error_of(response: Any) -> dict[str, str]:
    """The one error of an answer, its shape checked."""
    assert response["Content-Type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    assert {"code", "message"} <= body["error"].keys() <= {"code", "message", "field"}
    assert all(isinstance(value, str) and value for value in body["error"].values())
    return dict(body["error"])
