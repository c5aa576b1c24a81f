"""Rate limit buckets: what makes no sense is refused by the database itself, whoever writes it."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction

from core.models import Tenant
from messaging import buckets
from messaging.models import RateLimitBucket

pytestmark = pytest.mark.django_db

GLOBAL: dict[str, Any] = {
    "provider": "postbox",
    "scope": "global",
    "unit": "request",
    "capacity": 2.0,
    "refill_per_second": 9.8,
}
TENANT = GLOBAL | {"scope": "tenant", "unit": "send"}

IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "zero refill": (GLOBAL | {"refill_per_second": 0.0}, "messaging_buckets_refill_positive"),
    "negative refill": (GLOBAL | {"refill_per_second": -1.0}, "messaging_buckets_refill_positive"),
    "infinite refill": (GLOBAL | {"refill_per_second": float("inf")}, "messaging_buckets_refill_positive"),
    "refill that is no number": (GLOBAL | {"refill_per_second": float("nan")}, "messaging_buckets_refill_positive"),
    "capacity below one": (GLOBAL | {"capacity": 0.99}, "messaging_buckets_reserve_fits"),
    "zero capacity": (GLOBAL | {"capacity": 0.0}, "messaging_buckets_reserve_fits"),
    "capacity below reserve + 1": (GLOBAL | {"capacity": 3.9, "reserve": 3.0}, "messaging_buckets_reserve_fits"),
    "infinite capacity": (GLOBAL | {"capacity": float("inf")}, "messaging_buckets_reserve_fits"),
    "capacity that is no number": (GLOBAL | {"capacity": float("nan")}, "messaging_buckets_reserve_fits"),
    "negative reserve": (GLOBAL | {"reserve": -0.1}, "messaging_buckets_reserve_fits"),
    "reserve that is no number": (GLOBAL | {"reserve": float("nan")}, "messaging_buckets_reserve_fits"),
    "tenant bucket that counts requests": (TENANT | {"unit": "request"}, "messaging_buckets_scope_unit"),
    "global bucket of a tenant": (GLOBAL | {"tenant": True}, "messaging_buckets_tenant_scope"),
    "unknown scope": (GLOBAL | {"scope": "planet"}, "messaging_buckets_"),
    "unknown unit": (GLOBAL | {"unit": "byte"}, "messaging_buckets_"),
    "no provider": (GLOBAL | {"provider": ""}, "messaging_buckets_known_values"),
}


def tenant_of(slug: str = "shop") -> Tenant:
    return Tenant.objects.get_or_create(slug=slug, defaults={"name": slug})[0]


def values_of(case: dict[str, Any]) -> dict[str, Any]:
    return case | ({"tenant": tenant_of()} if case.get("tenant") else {})


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_the_database_refuses(case: str) -> None:
    values, constraint = IMPOSSIBLE[case]
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        RateLimitBucket.objects.create(**values_of(values))
    assert not RateLimitBucket.objects.filter(provider=values["provider"]).exists()


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_form_says_why(case: str) -> None:
    """What the admin runs: words, and not the name of a constraint."""
    with pytest.raises(ValidationError) as caught:
        RateLimitBucket(**values_of(IMPOSSIBLE[case][0])).full_clean()
    text = " ".join(caught.value.messages)
    assert text
    assert "Constraint" not in text


@pytest.mark.parametrize(
    "values",
    [GLOBAL, GLOBAL | {"unit": "send"}, TENANT, TENANT | {"tenant": True}],
    ids=["limit", "quota", "default of tenants", "one tenant"],
)
def test_a_bucket_is_there_once_also_without_a_tenant(values: dict[str, Any]) -> None:
    RateLimitBucket.objects.create(**values_of(values))
    twin = RateLimitBucket(**values_of(values | {"capacity": 5.0}))
    with pytest.raises(ValidationError, match="such a bucket already"):
        twin.full_clean()
    with pytest.raises(IntegrityError, match="messaging_buckets_one"), transaction.atomic():
        twin.save()


def test_all_sensible_ones_may_stand_side_by_side() -> None:
    rows = [GLOBAL, GLOBAL | {"unit": "send"}, TENANT, TENANT | {"tenant": tenant_of()}]
    rows += [TENANT | {"tenant": tenant_of("other")}, GLOBAL | {"provider": "second"}]
    for values in rows:
        bucket = RateLimitBucket(**values)
        bucket.full_clean()
        bucket.save()


@pytest.mark.parametrize("edge", [{"capacity": 1.0}, {"capacity": 4.0, "reserve": 3.0}, {"refill_per_second": 1e-6}])
def test_what_lies_on_the_edge_is_allowed(edge: dict[str, float]) -> None:
    RateLimitBucket.objects.create(**GLOBAL | edge)


def test_plain_sql_is_refused_too() -> None:
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO messaging_rate_limit_buckets (provider, scope, unit, capacity, refill_per_second, reserve)"
            " VALUES ('postbox', 'global', 'request', 1, 0, 0)"
        )


def test_limits_come_from_the_rows() -> None:
    RateLimitBucket.objects.create(**TENANT | {"capacity": 50.0, "tenant": tenant_of()})
    buckets.forget()
    assert buckets.limits_of("postbox") is None  # a tenant's row is no limit: fail closed
    RateLimitBucket.objects.create(**GLOBAL)
    assert buckets.limits_of("postbox") is None  # believed for two seconds
    buckets.forget()
    limits = buckets.limits_of("postbox")
    assert limits is not None
    assert (limits.request.capacity, limits.request.refill, limits.quota) == (2.0, 9.8, None)
    other = tenant_of("other")
    found = buckets.tenant_buckets("postbox", [tenant_of().pk, other.pk])
    assert (found[tenant_of().pk].capacity, found[other.pk]) == (50.0, buckets.DEFAULT_TENANT_BUCKET)
    buckets.forget()
