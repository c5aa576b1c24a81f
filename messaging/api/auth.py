"""Bearer keys: who is calling. The key itself is never logged, never stored, never quoted in an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from core.models import ApiKey, Tenant
from messaging.domain.errors import Forbidden, Unauthenticated
from messaging.services.allowances import ALLOWANCES, Allowance, allowance_of_key

#: The form that `ApiKey.issue` gives. Anything else is told so without a query.
_KEY = re.compile(r"drk_[A-Za-z0-9_-]{20,128}")


@dataclass(frozen=True, slots=True)
class Caller:
    """`request.user` of the HTTP API: a tenant, by one of its keys."""

    tenant: Tenant
    key_id: int
    allowance: Allowance
    is_authenticated: bool = True
    is_active: bool = True


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer drk_…`, looked up by its SHA-256.

    A missing header is left to the permissions (401 `not_authenticated`), so that a view may accept other credentials
    as well. Only the holder of a real key can learn that it was revoked or its tenant switched off.
    """

    def authenticate(self, request: Request) -> tuple[Caller, None] | None:
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is None:
            return None
        scheme, _, key = header.strip().partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated(
                "unsupported_auth_scheme", "Send the API key as a bearer token: Authorization: Bearer drk_…"
            )
        key = key.strip()
        if not _KEY.fullmatch(key):
            raise Unauthenticated(
                "malformed_api_key", "This is not an API key: one starts with drk_ and holds no spaces. Copy it whole."
            )
        keys = ApiKey.objects.select_related("tenant", *ALLOWANCES).defer("digest")
        found = keys.filter(digest=ApiKey.digest_of(key)).first()
        if found is None:
            raise Unauthenticated("invalid_api_key", "This API key is not known here.")
        if found.revoked_at is not None:
            raise Unauthenticated("api_key_revoked", "This API key was revoked. Ask the operator for a new one.")
        if not found.tenant.active:
            raise Forbidden("tenant_inactive", "This tenant is switched off. Ask the operator.")
        return Caller(found.tenant, found.pk, allowance_of_key(found)), None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"
