"""Rate limit buckets: what makes no sense is refused by the database itself, whoever writes it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction

from core.governor.client import Bucket
from core.models import Tenant
from messaging.domain.rails import Rail
from messaging.ledger import buckets
from messaging.models import RateLimitBucket
from messaging.providers.resend.adapter import ResendAdapter

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
    "global bucket of a rail": (GLOBAL | {"rail": "marketing"}, "messaging_buckets_rail_of_tenant"),
    "unknown rail": (TENANT | {"rail": "sms"}, "messaging_buckets_rail_of_tenant"),
    "reserve of a rail's bucket": (
        TENANT | {"rail": "transactional", "reserve": 1.0},
        "messaging_buckets_rail_of_tenant",
    ),
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
    [GLOBAL, GLOBAL | {"unit": "send"}, TENANT, TENANT | {"tenant": True}, TENANT | {"rail": "marketing"}],
    ids=["limit", "quota", "default of tenants", "one tenant", "default of a rail"],
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
    rows += [TENANT | {"rail": rail.value} for rail in Rail]
    rows += [TENANT | {"tenant": tenant_of(), "rail": rail.value} for rail in Rail]
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
    buckets.forget()


def about(value: float) -> Any:
    return pytest.approx(value)


class _Postbox(ResendAdapter):
    name = "postbox"
    max_batch = 100


def _found(tenant: Tenant) -> dict[str, Bucket]:
    buckets.forget()
    limits = buckets.limits_of("postbox")
    assert limits is not None
    adapter = _Postbox(api_key="re_x", base_url="http://127.0.0.1:1")
    found = {rail.value: buckets.tenant_buckets(adapter, limits, rail, [tenant.pk])[tenant.pk] for rail in Rail}
    buckets.forget()
    return found


def test_without_a_row_a_tenant_may_use_all_of_marketing_and_half_of_the_transactional_rail() -> None:
    RateLimitBucket.objects.create(**GLOBAL)
    found = _found(tenant_of())
    assert found["transactional"] == Bucket(about(490), about(490), rail="transactional")
    assert found["marketing"].refill >= 100_000, "more than any provider takes"
    assert found["marketing"].rail == "marketing"


def test_a_slow_provider_s_share_still_holds_a_full_request() -> None:
    RateLimitBucket.objects.create(**GLOBAL | {"refill_per_second": 0.5})
    assert _found(tenant_of())["transactional"] == Bucket(100, about(25), rail="transactional")


#: Capacities tell the rows apart: default of both, of a rail; the tenant's of both, of a rail.
_ROWS = {"d": 10.0, "dt": 11.0, "dm": 12.0, "o": 20.0, "ot": 21.0, "om": 22.0}


@pytest.mark.parametrize(
    ("rows", "transactional", "marketing"),
    [
        ("", 490, 1_000_000),
        ("d", 10, 10),
        ("dt", 11, 1_000_000),
        ("d dm", 10, 12),
        ("d dt dm", 11, 12),
        ("dt dm o", 20, 20),
        ("d ot", 21, 10),
        ("om", 490, 22),
        ("d dt dm o ot om", 21, 22),
    ],
)
def test_the_row_of_the_tenant_before_the_default_and_the_rail_s_before_both(
    rows: str, transactional: float, marketing: float
) -> None:
    RateLimitBucket.objects.create(**GLOBAL)
    rails = {"t": Rail.TRANSACTIONAL.value, "m": Rail.MARKETING.value, "": None}
    for name in rows.split():
        tenant = tenant_of() if name[0] == "o" else None
        RateLimitBucket.objects.create(**TENANT | {"capacity": _ROWS[name], "rail": rails[name[1:]], "tenant": tenant})
    found = _found(tenant_of())
    assert (found["transactional"].capacity, found["marketing"].capacity) == (about(transactional), marketing)
    RateLimitBucket.objects.filter(tenant=tenant_of()).delete()
    assert _found(tenant_of("other")) == _found(tenant_of()), "nobody else's"


def test_a_bucket_for_both_rails_is_one_level_and_of_each_rail_another() -> None:
    RateLimitBucket.objects.create(**GLOBAL)
    both = RateLimitBucket.objects.create(**TENANT)
    assert {bucket.level_of(7) for bucket in _found(tenant_of()).values()} == {"7"}
    RateLimitBucket.objects.filter(pk=both.pk).update(rail="marketing")
    assert {bucket.level_of(7) for bucket in _found(tenant_of()).values()} == {"7:transactional", "7:marketing"}


MIGRATION = import_module("messaging.migrations.0010_bucket_rail")


@pytest.mark.parametrize(
    "changed",
    [{}, {"capacity": 2000.0}, {"refill_per_second": 500.0}, {"reserve": 5.0}, {"tenant": True}, {"rail": "marketing"}],
    ids=str,
)
def test_a_default_that_somebody_has_changed_outlives_the_migration_and_the_seeded_one_does_not(
    changed: dict[str, Any],
) -> None:
    RateLimitBucket.objects.filter(scope="tenant").delete()
    row = RateLimitBucket.objects.create(**values_of(MIGRATION.SEEDED | changed))
    MIGRATION.drop_the_seeded_default(apps, None)
    assert RateLimitBucket.objects.filter(pk=row.pk).exists() == bool(changed)


def test_a_fresh_installation_has_no_default_of_tenants() -> None:
    assert not RateLimitBucket.objects.filter(scope="tenant").exists()
