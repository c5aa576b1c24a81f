"""Tenants and API keys."""

from __future__ import annotations

import hashlib

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.utils import timezone

from core.models import ApiKey, DeadLetter, ProcessedJob, Tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return Tenant.objects.create(slug="shop", name="The Shop")


@pytest.mark.parametrize("slug", ["a", "shop", "shop-2", "0", "a--b", "a" * 63])
def test_good_slugs(slug: str) -> None:
    Tenant(slug=slug, name="x").full_clean()


@pytest.mark.parametrize("slug", ["", "-a", "a-", "Shop", "a b", "a_b", "ä", "a\n", "a" * 64])
def test_bad_slugs(slug: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Tenant(slug=slug, name="x").full_clean()
    assert caught.value.message_dict.keys() == {"slug"}


def test_a_slug_is_one_tenant(tenant: Tenant) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Tenant.objects.create(slug="shop", name="Another")


def test_a_new_tenant_is_active_and_dated_by_the_database(tenant: Tenant) -> None:
    tenant.refresh_from_db()
    assert tenant.active
    assert abs((tenant.created_at - timezone.now()).total_seconds()) < 60
    assert str(tenant) == "shop"


def test_a_key_is_given_once_and_only_its_digest_is_kept(tenant: Tenant) -> None:
    row, key = ApiKey.issue(tenant, "web shop")
    assert key.startswith("drk_")
    assert len(key) == 47
    row.refresh_from_db()
    assert bytes(row.digest) == hashlib.sha256(key.encode()).digest() == ApiKey.digest_of(key)
    stored = repr([value for field, value in vars(row).items() if field != "_state"])
    assert key not in stored
    assert key[12:] not in stored
    assert row.prefix == key[:12]
    assert str(row) == f"{key[:12]}… (web shop)"


def test_keys_differ(tenant: Tenant) -> None:
    keys = {ApiKey.issue(tenant, "x")[1] for _ in range(20)}
    assert len(keys) == 20


def test_revoking_is_for_good_and_safe_to_repeat(tenant: Tenant) -> None:
    row, _ = ApiKey.issue(tenant, "x")
    other, _ = ApiKey.issue(tenant, "y")
    row.revoke()
    row.refresh_from_db()
    first = row.revoked_at
    assert first is not None
    row.revoke()
    row.refresh_from_db()
    other.refresh_from_db()
    assert (row.revoked_at, other.revoked_at) == (first, None)


def test_a_tenant_with_dead_letters_cannot_be_deleted(tenant: Tenant) -> None:
    DeadLetter.objects.create(channel="email", tenant=tenant, reason="invalid_to")
    with pytest.raises(ProtectedError):
        tenant.delete()


def test_a_fence_is_positive() -> None:
    with pytest.raises(IntegrityError, match="core_processed_jobs_fence_positive"), transaction.atomic():
        ProcessedJob.objects.create(job_key="x", fence=0, lease_until=timezone.now())


def test_a_job_key_is_one_job() -> None:
    ProcessedJob.objects.create(job_key="x", lease_until=timezone.now())
    with pytest.raises(IntegrityError), transaction.atomic():
        ProcessedJob.objects.create(job_key="x", lease_until=timezone.now())
