"""In which categories who may send (invariant 11): the operator's word for tenant and key, whichever way a send comes in."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from core.models import ApiKey, Tenant
from messaging.domain.errors import Forbidden, MessagingError, TooLarge
from messaging.models import Blast, KeyAllowance, Send, TenantAllowance
from messaging.planner import fill
from messaging.planner.rows import chunks
from messaging.services.submit import submit
from tests.factories import allow_blasts, make_tenant, request
from tests.messaging import tenant_rig
from tests.messaging.admin.test_admin import allowed
from tests.messaging.api.blasts.rig import Blasts, assert_adds_up, csv_of, people, refused
from tests.messaging.planner.rig import csv_file, plan
from tests.messaging.tenant_rig import Speaker, ensure_bucket

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    ensure_bucket()
    return make_tenant("acme")


@pytest.fixture
def blasts() -> Blasts:
    ensure_bucket()
    return Blasts(Speaker.of(tenant_rig.make_tenant()))


@pytest.fixture
def chunk_rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda count: monkeypatch.setattr(fill, "chunks", lambda rows, **more: chunks(rows, max_rows=count, **more))


def allow(tenant: Tenant, **values: Any) -> None:
    TenantAllowance.objects.update_or_create(tenant=tenant, defaults=values)


def code_of(call: Any, kind: type[MessagingError] = Forbidden) -> str:
    with pytest.raises(kind) as caught:
        call()
    return caught.value.code


@pytest.mark.parametrize("category", ["transactional", "product"])
def test_without_the_operator_s_word_a_blast_is_marketing(tenant: Tenant, blasts: Blasts, category: str) -> None:
    assert code_of(lambda: plan(tenant, people(1), category=category)) == "category_not_allowed"
    refused(blasts.create(category=category), 403, "category_not_allowed", "category")
    refused(
        blasts.create(category=category, recipients=people(1), launch=True), 403, "category_not_allowed", "category"
    )
    assert not Blast.objects.exists()
    assert plan(tenant, people(1)).planned == 1
    submit(tenant, **request(tenant, category=category))  # single sends are as they were


def test_the_command_is_told_so(tenant: Tenant, tmp_path: Any) -> None:
    (tmp_path / "list.csv").write_text("to\na@x.org\n")
    with pytest.raises(CommandError, match="category_not_allowed"):
        call_command(
            *("blast", "--tenant", "acme", "--csv", str(tmp_path / "list.csv"), "--category", "product"),
            *("--from", "a@acme.org", "--subject", "s", "--html-text", "x"),
        )
    assert not Blast.objects.exists()


def test_a_priority_blast_has_as_many_recipients_as_the_operator_allows(tenant: Tenant, chunk_rows: Any) -> None:
    allow_blasts(tenant, most=10)
    assert plan(tenant, people(10), category="product").planned == 10
    for recipients in (people(11), csv_file("to,name", *(f"a{i}@x.org,N" for i in range(11)))):
        kept = Send.objects.count()
        assert code_of(lambda r=recipients: plan(tenant, r, category="product"), TooLarge) == "priority_blast_too_large"
        assert Send.objects.count() == kept
    # In chunks, it stops at the one that is too much; a blast that came to nothing is cancelled, its key free again.
    with pytest.raises(TooLarge, match="at most 10 "):
        plan(tenant, people(11), category="product", idempotency_key="k")
    assert Blast.objects.order_by("id").last().state == "cancelled"  # type: ignore[union-attr]
    assert plan(tenant, people(5), category="product", idempotency_key="k").planned == 5
    chunk_rows(4)
    assert code_of(lambda: plan(tenant, people(11), category="product"), TooLarge) == "priority_blast_too_large"
    last = Blast.objects.latest("id")
    assert (last.state, last.planned) == ("planning", 8)
    assert plan(tenant, people(1_001)).planned == 1_001  # marketing as ever


def test_the_default_size_of_a_priority_blast(tenant: Tenant) -> None:
    allow(tenant, blast_categories=["product", "marketing"])
    assert code_of(lambda: plan(tenant, people(1_001), category="product"), TooLarge) == "priority_blast_too_large"
    assert plan(tenant, people(1_000), category="product").planned == 1_000


def test_uploads_and_requests_add_up_to_no_more(blasts: Blasts) -> None:
    allow_blasts(blasts.speaker.tenant, "product", most=10)
    answer = blasts.create(category="product", recipients=people(11))
    refused(answer, 413, "priority_blast_too_large", "recipients")
    assert not Blast.objects.exists()
    blast = blasts.made(category="product", recipients=people(6))
    refused(blasts.upload(blast, csv_of(11)), 413, "priority_blast_too_large", "recipients")
    assert assert_adds_up(blast).planned == 6
    assert blasts.upload(blast, csv_of(10)).json()["added"] == 4  # six of them are in it
    refused(blasts.upload(blast, csv_of(1, start=50)), 413, "priority_blast_too_large", "recipients")


def test_a_word_that_was_taken_back_holds_for_what_is_not_launched(blasts: Blasts) -> None:
    allow_blasts(blasts.speaker.tenant, "product")
    blast = blasts.made(category="product", recipients=people(1))
    allow(blasts.speaker.tenant, blast_categories=[])
    refused(blasts.upload(blast, csv_of(2)), 403, "category_not_allowed", "category")
    refused(blasts.post(f"/{blast}/launch"), 403, "category_not_allowed", "category")


def test_single_sends_are_of_the_tenant_s_categories(tenant: Tenant, blasts: Blasts) -> None:
    allow(tenant, categories=["marketing", "product"])
    assert code_of(lambda: submit(tenant, **request(tenant))) == "category_not_allowed"
    submit(tenant, **request(tenant, category="product"))
    allow(blasts.speaker.tenant, categories=["product"])
    refused(blasts.speaker.send(), 403, "category_not_allowed", "category")
    refused(blasts.create(), 403, "category_not_allowed", "category")  # nor is a blast more than a send
    assert Send.objects.count() == 1


def test_a_repetition_is_answered_as_it_was(blasts: Blasts) -> None:
    body = {"category": "transactional", "to": "a@x.org", "from": "a@shop.example", "subject": "s", "text": "t"}
    assert blasts.speaker.post(body, **{"Idempotency-Key": "k"}).status_code == 202
    allow(blasts.speaker.tenant, categories=["marketing"])
    assert blasts.speaker.post(body, **{"Idempotency-Key": "k"}).status_code == 202
    assert Send.objects.count() == 1


def test_a_key_may_less_than_its_tenant_and_never_more(blasts: Blasts) -> None:
    tenant = blasts.speaker.tenant
    allow_blasts(tenant)
    row = ApiKey.objects.get(tenant=tenant)
    KeyAllowance.objects.create(api_key=row, categories=["marketing"])
    refused(blasts.speaker.send(), 403, "category_not_allowed", "category")
    assert blasts.speaker.send(category="marketing").status_code == 202
    refused(blasts.create(category="product"), 403, "category_not_allowed", "category")
    made = plan(tenant, people(1), from_="a@shop.example", category="product", launch=False)
    refused(blasts.post(f"/{made.blast_id}/launch"), 403, "category_not_allowed", "category")
    refused(blasts.upload(str(made.blast_id), csv_of(2)), 403, "category_not_allowed", "category")
    allow(tenant, categories=["transactional"])
    refused(blasts.speaker.send(category="marketing"), 403, "category_not_allowed", "category")


def test_a_submit_asks_for_it_once(tenant: Tenant, blasts: Blasts, django_assert_num_queries: Any) -> None:
    """Over HTTP with the key, in the query that there is anyhow."""
    KeyAllowance.objects.create(api_key=ApiKey.objects.get(), categories=[])
    with django_assert_num_queries(1):
        blasts.speaker.client.get("/v1/messaging/sends/x", headers=blasts.speaker.headers())


def test_the_database_knows_the_categories(tenant: Tenant) -> None:
    for values in ({"categories": ["otp"]}, {"blast_categories": ["marketing", "otp"]}):
        with pytest.raises(IntegrityError), transaction.atomic():
            TenantAllowance.objects.create(tenant=tenant, **values)


# The operator


@pytest.fixture
def admin() -> Client:
    client = Client()
    client.force_login(User.objects.create(username="operator", is_staff=True, is_superuser=True))
    return client


DOMAINS = {"sender_domains-TOTAL_FORMS": "0", "sender_domains-INITIAL_FORMS": "0"}


def test_the_admin_sets_it_at_the_tenant(admin: Client, tenant: Tenant) -> None:
    path = reverse("admin:core_tenant_change", args=[tenant.pk])
    page = admin.get(path).content.decode()
    assert page.count("checked") == 2  # active, and marketing for blasts
    assert "goes before the marketing of all tenants" in page
    form = {"name": "Acme", "active": "on", **DOMAINS, "categories": ["product", "marketing"]}
    form |= {"blast_categories": ["product"], "max_priority_blast": "50"}
    assert admin.post(path, form).status_code == 302
    found = TenantAllowance.objects.get(tenant=tenant)
    assert (found.categories, found.blast_categories, found.max_priority_blast) == (
        ["product", "marketing"],
        ["product"],
        50,
    )
    assert admin.get(path).content.decode().count("checked") == 4
    assert (
        admin.post(path, {"name": "Acme", "active": "on", **DOMAINS}).status_code == 302
    )  # all boxes empty: the defaults
    assert plan(tenant, people(1)).planned == 1
    assert code_of(lambda: plan(tenant, people(1), category="product")) == "category_not_allowed"


def test_who_may_only_look_sees_it(tenant: Tenant) -> None:
    page = allowed("core.view_tenant").get(reverse("admin:core_tenant_change", args=[tenant.pk])).content.decode()
    assert "transactional, product, marketing" in page


def test_a_key_is_issued_for_some_categories(admin: Client, tenant: Tenant) -> None:
    form = {"tenant": tenant.pk, "name": "shop", "categories": ["marketing"]}
    assert admin.post(reverse("admin:core_apikey_add"), form).status_code == 200
    row = ApiKey.objects.get()
    assert row.allowance.categories == ["marketing"]
    page = admin.get(reverse("admin:core_apikey_change", args=[row.pk])).content.decode()
    assert "marketing" in page
    assert "transactional" not in page
    ApiKey.issue(tenant, "another")
    assert "transactional, product, marketing" in admin.get(reverse("admin:core_apikey_changelist")).content.decode()


def test_create_tenant_says_it_at_once() -> None:
    ensure_bucket()
    call_command(
        "create_tenant",
        *("wool", "--name", "Wool", "--domain", "wool.org", "--category", "product", "--category", "marketing"),
        *("--blast-category", "product", "--max-priority-blast", "7"),
        stdout=io.StringIO(),
        stderr=io.StringIO(),
    )
    wool = Tenant.objects.get(slug="wool")
    assert code_of(lambda: submit(wool, **request(wool))) == "category_not_allowed"
    assert plan(wool, people(7), category="product", from_="a@wool.org").planned == 7
    assert code_of(lambda: plan(wool, people(8), category="product", from_="a@wool.org"), TooLarge)
