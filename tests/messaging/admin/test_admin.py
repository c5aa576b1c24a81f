"""The admin, as an operator clicks through it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse

from core.governor.client import Bucket
from core.models import ApiKey, Tenant
from messaging.admin import SendAdmin
from messaging.domain.rails import Channel, Rail
from messaging.ledger import buckets
from messaging.models import RateLimitBucket, SenderDomain
from messaging.providers.registry import adapter_for
from tests.messaging.tenant_rig import ensure_bucket, make_tenant

pytestmark = pytest.mark.django_db

TENANTS, KEYS = "admin:core_tenant", "admin:core_apikey"
BUCKETS = "admin:messaging_ratelimitbucket"
DOMAIN_FORMS = {"sender_domains-TOTAL_FORMS": "1", "sender_domains-INITIAL_FORMS": "0"}


@pytest.fixture(autouse=True)
def bucket() -> Iterator[None]:
    ensure_bucket()
    yield
    buckets.forget()


@pytest.fixture
def admin_client() -> Client:
    """As pytest-django's, without half a second for the hash of a password."""
    client = Client()
    client.force_login(User.objects.create(username="operator", is_staff=True, is_superuser=True))
    return client


def text_of(response: Any) -> str:
    assert response.status_code == 200
    return str(response.content.decode())


def errors_of(response: Any) -> str:
    """All that the form complains about."""
    assert response.status_code == 200, "it was saved"
    return repr(response.context["adminform"].form.errors) + repr(response.context["errors"])


def allowed(*names: str) -> Client:
    """A member of staff who may do this and nothing else."""
    user = User.objects.create_user("clerk", is_staff=True)
    for name in names:
        app, code = name.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=code))
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize("model", [TENANTS, KEYS, BUCKETS])
def test_lists_searches_and_forms_open(admin_client: Client, model: str) -> None:
    ApiKey.issue(make_tenant(), "web")
    for path in (reverse(f"{model}_changelist"), reverse(f"{model}_add"), reverse(f"{model}_changelist") + "?q=shop"):
        assert admin_client.get(path).status_code == 200
    for row in {TENANTS: Tenant, KEYS: ApiKey, BUCKETS: RateLimitBucket}[model].objects.all():
        assert admin_client.get(reverse(f"{model}_change", args=[row.pk])).status_code == 200


# Tenants


def test_a_tenant_is_added_with_a_domain(admin_client: Client) -> None:
    form = {"slug": "shop", "name": "The Shop", "active": "on", **DOMAIN_FORMS}
    answer = admin_client.post(reverse(f"{TENANTS}_add"), form | {"sender_domains-0-domain": " Shop.Example "})
    assert answer.status_code == 302
    assert (Tenant.objects.get().slug, SenderDomain.objects.get().domain) == ("shop", "shop.example")


@pytest.mark.parametrize("domain", ["localhost", "a@shop.example", "https://shop.example", "shop .example", "x" * 300])
def test_what_is_no_domain_is_said_at_the_field(admin_client: Client, domain: str) -> None:
    form = {"slug": "shop", "name": "The Shop", "active": "on", **DOMAIN_FORMS}
    answer = admin_client.post(reverse(f"{TENANTS}_add"), form | {"sender_domains-0-domain": domain})
    assert "domain" in errors_of(answer).lower() or "characters" in errors_of(answer)
    assert not Tenant.objects.exists()


def test_a_domain_twice_is_said(admin_client: Client) -> None:
    tenant = make_tenant()
    form = {"name": "Shop", "active": "on", **DOMAIN_FORMS, "sender_domains-0-domain": "shop.example"}
    answer = admin_client.post(reverse(f"{TENANTS}_change", args=[tenant.pk]), form)
    assert "already exists" in errors_of(answer)
    assert SenderDomain.objects.count() == 1


def test_a_tenant_is_switched_off_and_never_deleted(admin_client: Client) -> None:
    tenant = make_tenant()
    page = text_of(admin_client.get(reverse(f"{TENANTS}_change", args=[tenant.pk])))
    assert "deletelink" not in page
    assert admin_client.post(reverse(f"{TENANTS}_delete", args=[tenant.pk]), {"post": "yes"}).status_code == 403
    action = {"action": "delete_selected", "_selected_action": [tenant.pk], "post": "yes"}
    admin_client.post(reverse(f"{TENANTS}_changelist"), action)
    assert Tenant.objects.exists()
    form = {"name": "Shop", "slug": "renamed", **DOMAIN_FORMS}
    assert admin_client.post(reverse(f"{TENANTS}_change", args=[tenant.pk]), form).status_code == 302
    tenant.refresh_from_db()
    assert (tenant.active, tenant.slug) == (False, "shop")  # the slug stands in logs


def test_a_tenant_is_found_by_its_domain(admin_client: Client) -> None:
    make_tenant()
    make_tenant("other", "other.example")
    page = text_of(admin_client.get(reverse(f"{TENANTS}_changelist") + "?q=other.example"))
    assert "1 tenant" in page


# API keys


def issue(client: Client, tenant: Tenant) -> Any:
    return client.post(reverse(f"{KEYS}_add"), {"tenant": tenant.pk, "name": "web shop"})


def test_a_key_is_shown_once_and_nowhere_afterwards(admin_client: Client) -> None:
    tenant = make_tenant()
    answer = issue(admin_client, tenant)
    page = text_of(answer)
    key = page.split('id="issued-key"')[1].split(">")[1].split("<")[0]
    row = ApiKey.objects.get()
    assert ApiKey.digest_of(key) == bytes(row.digest)
    assert "no-store" in answer["Cache-Control"]

    later = [reverse(f"{KEYS}_changelist"), reverse(f"{KEYS}_change", args=[row.pk])]
    later += [reverse(f"{KEYS}_history", args=[row.pk]), reverse("admin:index")]
    for path in later:
        page = text_of(admin_client.get(path))
        assert key[12:] not in page
        assert bytes(row.digest).hex() not in page
    kept = repr(list(LogEntry.objects.values())) + repr([s.get_decoded() for s in Session.objects.all()])
    assert key[12:] not in kept + repr(admin_client.cookies)
    assert LogEntry.objects.count() == 1


def test_a_key_is_neither_changed_nor_deleted(admin_client: Client) -> None:
    row, _ = ApiKey.issue(make_tenant(), "web")
    page = text_of(admin_client.get(reverse(f"{KEYS}_change", args=[row.pk])))
    assert 'name="name"' not in page
    assert admin_client.post(reverse(f"{KEYS}_change", args=[row.pk]), {"name": "x"}).status_code == 403
    assert admin_client.post(reverse(f"{KEYS}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    row.refresh_from_db()
    assert row.name == "web"


def test_revoking(admin_client: Client) -> None:
    tenant = make_tenant()
    rows = [ApiKey.issue(tenant, name)[0] for name in "abc"]
    rows[0].revoke()
    action = {"action": "revoke", "_selected_action": [row.pk for row in rows[:2]]}
    page = text_of(admin_client.post(reverse(f"{KEYS}_changelist"), action, follow=True))
    assert "Revoked: 1." in page
    assert list(ApiKey.objects.filter(revoked_at=None)) == [rows[2]]
    assert LogEntry.objects.filter(change_message="Revoked.").count() == 1


def test_who_may_only_look_at_keys_can_do_nothing(admin_client: Client) -> None:
    tenant = make_tenant()
    row, _ = ApiKey.issue(tenant, "web")
    clerk = allowed("core.view_apikey")
    assert "web" in text_of(clerk.get(reverse(f"{KEYS}_changelist")))
    assert issue(clerk, tenant).status_code == 403
    clerk.post(reverse(f"{KEYS}_changelist"), {"action": "revoke", "_selected_action": [row.pk]})
    row.refresh_from_db()
    assert row.revoked_at is None
    assert ApiKey.objects.count() == 1


# Rate limit buckets

BUCKET = {
    "provider": "resend",
    "scope": "tenant",
    "unit": "send",
    "tenant": "",
    "capacity": "50",
    "refill_per_second": "10",
    "reserve": "0",
}


def add(client: Client, **changes: object) -> Any:
    return client.post(reverse(f"{BUCKETS}_add"), BUCKET | changes)


def bucket_of(tenant: Tenant, rail: Rail) -> Bucket:
    adapter, limits = adapter_for(Channel.EMAIL), buckets.limits_of("resend")
    assert adapter
    assert limits
    return buckets.tenant_buckets(adapter, limits, rail, [tenant.pk])[tenant.pk]


def test_a_bucket_is_added_changed_and_acts_at_once(admin_client: Client) -> None:
    tenant = make_tenant()
    assert bucket_of(tenant, Rail.MARKETING).capacity != 50
    assert add(admin_client, tenant=tenant.pk).status_code == 302
    assert bucket_of(tenant, Rail.MARKETING).capacity == bucket_of(tenant, Rail.TRANSACTIONAL).capacity == 50
    row = RateLimitBucket.objects.get(tenant=tenant)
    form = BUCKET | {"tenant": tenant.pk, "capacity": "70"}
    assert admin_client.post(reverse(f"{BUCKETS}_change", args=[row.pk]), form).status_code == 302
    assert bucket_of(tenant, Rail.MARKETING).capacity == 70


def test_a_bucket_for_one_rail_is_added(admin_client: Client) -> None:
    tenant = make_tenant()
    assert add(admin_client, tenant=tenant.pk).status_code == 302
    assert add(admin_client, tenant=tenant.pk, rail="transactional", capacity="20").status_code == 302
    assert [bucket_of(tenant, rail).capacity for rail in Rail] == [20, 50]
    assert "transactional rail" in text_of(admin_client.get(reverse(f"{BUCKETS}_changelist")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"refill_per_second": "0"}, "refill must be above 0"),
        ({"refill_per_second": "-1"}, "refill must be above 0"),
        ({"refill_per_second": "nan"}, "Enter a number"),
        ({"refill_per_second": "1e999"}, "Enter a number"),
        ({"refill_per_second": "1e300"}, "0.000001 to 1,000,000"),
        ({"refill_per_second": ""}, "required"),
        ({"capacity": "0.5"}, "at least the reserve + 1"),
        ({"capacity": "3", "reserve": "2.5"}, "at least the reserve + 1"),
        ({"reserve": "-1"}, "at least the reserve + 1"),
        ({"unit": "request", "tenant": "TENANT"}, "A tenant bucket counts sends"),
        ({"scope": "global", "unit": "send", "tenant": "TENANT"}, "A global bucket belongs to no tenant"),
        ({"scope": "global", "unit": "request"}, "such a bucket already"),
        ({"scope": "global", "unit": "send", "rail": "marketing"}, "Only a tenant's bucket names a rail"),
        ({"rail": "transactional", "reserve": "1"}, "nothing to reserve"),
        ({"rail": "sms"}, "not one of the available choices"),
        ({"provider": "nobody"}, "not one of the available choices"),
        ({"provider": ""}, "required"),
        ({"scope": "planet"}, "not one of the available choices"),
        ({"unit": "byte"}, "not one of the available choices"),
        ({"tenant": "999999"}, "not one of the available choices"),
    ],
)
def test_what_makes_no_sense_is_said(admin_client: Client, changes: dict[str, str], words: str) -> None:
    tenant = make_tenant()
    changes = {name: str(tenant.pk) if value == "TENANT" else value for name, value in changes.items()}
    before = RateLimitBucket.objects.count()
    assert words in errors_of(add(admin_client, **changes))
    assert RateLimitBucket.objects.count() == before


def test_providers_are_chosen_from_those_there_are(admin_client: Client) -> None:
    RateLimitBucket.objects.create(provider="retired", scope="global", unit="request", capacity=2, refill_per_second=1)
    page = text_of(admin_client.get(reverse(f"{BUCKETS}_add")))
    assert '<option value="resend"' in page
    assert "retired" not in page
    row = RateLimitBucket.objects.get(provider="retired")
    assert '<option value="retired" selected' in text_of(admin_client.get(reverse(f"{BUCKETS}_change", args=[row.pk])))


@pytest.mark.parametrize("how", ["page", "action"])
def test_taking_away_the_limit_is_said_to_stop_everything(admin_client: Client, how: str) -> None:
    row = RateLimitBucket.objects.get(provider="resend", scope="global", unit="request")
    if how == "page":
        path, form = reverse(f"{BUCKETS}_delete", args=[row.pk]), {"post": "yes"}
    else:
        path = reverse(f"{BUCKETS}_changelist")
        form = {"action": "delete_selected", "_selected_action": str(row.pk), "post": "yes"}
    assert "nothing is sent through it" in text_of(admin_client.post(path, form, follow=True))
    assert buckets.limits_of("resend") is None


def test_a_viewer_of_buckets_sees_them(admin_client: Client) -> None:
    row = RateLimitBucket.objects.get(provider="resend", scope="global", unit="request")
    clerk = allowed("messaging.view_ratelimitbucket")
    assert "resend" in text_of(clerk.get(reverse(f"{BUCKETS}_change", args=[row.pk])))
    assert add(clerk).status_code == 403


def test_the_overview_holds_what_is_there(admin_client: Client) -> None:
    page = text_of(admin_client.get(reverse("admin:index")))
    for name in ("Sends", "Blasts", "Batches", "Dead letters", "Tenants", "Rate limit buckets"):
        assert f">{name}<" in page
    assert ">Tasks<" not in page, "a table that nobody writes"
    assert "View site" not in page


def test_nothing_sealed_is_in_the_admin() -> None:
    from django.contrib import admin

    names = {model._meta.label for model in admin.site._registry}
    assert names.isdisjoint({"messaging.Content", "messaging.IdempotencyKey"})
    assert {"sealed", "fingerprint"}.isdisjoint(SendAdmin.columns)  # all that it reads
