"""Invariant 11: a tenant sends only from its own allowed sender domains, in the categories that it may use, sees only its own
rows, and cannot tune limits."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from core.models import ApiKey
from messaging.domain.errors import Conflict, Forbidden
from messaging.models import Content, IdempotencyKey, RateLimitBucket, Send, SenderDomain, TenantAllowance
from messaging.planner import plan_blast
from messaging.services.submit import submit
from tests.factories import make_tenant, request, statuses, submit_some
from tests.rig import Rig


@pytest.mark.parametrize(
    "sender", ["x@b.org", "x@sub.a.org", "x@a.org.evil.org", "x@xa.org", '"x@a.org" <x@b.org>', "A.ORG <x@b.org>"]
)
def test_only_from_its_own_domains(rig: Rig, sender: str) -> None:
    a, _ = make_tenant("a"), make_tenant("b")
    with pytest.raises(Forbidden) as caught:
        submit(a, **request(a, from_=sender))
    assert caught.value.code == "sender_domain_not_allowed"
    assert (Send.objects.count(), Content.objects.count()) == (0, 0)


def test_a_domain_that_was_taken_away_is_gone_at_once(rig: Rig) -> None:
    a = make_tenant("a")
    submit(a, **request(a))
    SenderDomain.objects.all().delete()
    with pytest.raises(Forbidden):
        submit(a, **request(a))


def test_only_in_its_categories_and_a_blast_is_marketing(rig: Rig) -> None:
    a = make_tenant("a")
    blast = {"recipients": [{"to": "x@x.org"}], "from_": "a@a.org", "subject": "s", "text": "t"}
    for category in ("transactional", "product"):
        with pytest.raises(Forbidden):
            plan_blast(a, **blast, category=category)
    TenantAllowance.objects.create(tenant=a, categories=["marketing"])
    with pytest.raises(Forbidden):
        submit(a, **request(a))
    assert plan_blast(a, **blast).planned == Send.objects.count() == 1


def test_another_tenant_s_send_looks_like_none(rig: Rig) -> None:
    a, b = make_tenant("a"), make_tenant("b")
    send = submit(a, **request(a))
    answers = []
    for pk in (send.id, "01a2296c-95ab-70e9-8cf8-2e09f568e160"):
        answer = _client(b).get(f"/v1/messaging/sends/{pk}")
        answers.append((answer.status_code, answer.json()))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404
    assert _client(a).get(f"/v1/messaging/sends/{send.id}").status_code == 200


def test_idempotency_keys_of_two_tenants_are_two_keys(rig: Rig) -> None:
    a, b = make_tenant("a"), make_tenant("b")
    first = submit(a, **request(a), idempotency_key="same")
    second = submit(b, **request(b), idempotency_key="same")
    assert first.id != second.id
    assert statuses() == {"queued": 2}
    with pytest.raises(Conflict):
        submit(a, **request(a, 7), idempotency_key="same")


def test_equal_contents_of_two_tenants_are_two_rows(rig: Rig) -> None:
    a, b = make_tenant("a"), make_tenant("b")
    SenderDomain.objects.create(tenant=b, domain="a.org")
    submit(a, **request(a, from_="x@a.org"))
    submit(b, **request(b, from_="x@a.org"))
    assert Content.objects.count() == 2
    assert len({bytes(d) for d in Content.objects.values_list("digest", flat=True)}) == 2
    assert IdempotencyKey.objects.count() == 0


def test_no_endpoint_with_a_tenant_s_key_reaches_a_bucket(rig: Rig) -> None:
    a = make_tenant("a")
    before = list(RateLimitBucket.objects.values())
    for path in _paths(get_resolver().url_patterns):
        if path.startswith("v1/"):
            assert not any(word in path for word in ("bucket", "limit", "domain", "key"))
    client = _client(a)
    for method in ("post", "put", "patch", "delete"):
        for path in ("/v1/messaging/buckets", "/v1/messaging/limits", "/admin/messaging/ratelimitbucket/1/change/"):
            assert getattr(client, method)(path).status_code in (302, 403, 404, 405)
    assert list(RateLimitBucket.objects.values()) == before


def _paths(patterns: list[Any], prefix: str = "") -> list[str]:
    found = []
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            found += _paths(pattern.url_patterns, prefix + str(pattern.pattern))
        elif isinstance(pattern, URLPattern):
            found.append(prefix + str(pattern.pattern))
    return found


def _client(tenant: Any) -> Client:
    return Client(headers={"Authorization": f"Bearer {ApiKey.issue(tenant, 'test')[1]}"})


def test_what_a_provider_says_of_a_mixed_request_is_told_to_no_tenant(rig: Rig) -> None:
    """Its words may be about another one; the operator reads them at the batch."""
    a, b = make_tenant("a"), make_tenant("secret-customer")
    submit_some(a, 1)
    submit_some(b, 1)
    rig.sandbox.fault("422", message="The secret-customer domain is not verified", count=1)
    rig.turn()
    assert "secret-customer" in rig.batches()[0].error_detail
    assert not Send.objects.filter(error_detail__contains="secret-customer").exists()
    assert Send.objects.filter(error_detail__contains="may not have been for this one").count() == 2
