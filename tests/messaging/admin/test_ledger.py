"""The ledger in the admin: found, linked, read-only, and nothing that is sealed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from core.broker.dead_letters import record_death
from core.models import DeadLetter, ProcessedJob, Tenant
from core.security.ids import new_id
from messaging.admin import keyset, readonly
from messaging.domain.lifecycle import BatchState, BlastState, SendStatus
from messaging.ledger import buckets
from messaging.models import Batch, Blast, Send
from tests.factories import insert_raw, make_blast, make_tenant, submit_some
from tests.messaging.tenant_rig import ensure_bucket

pytestmark = pytest.mark.django_db

SENDS, BLASTS, BATCHES = "messaging_send", "messaging_blast", "messaging_batch"
LETTERS = "core_deadletter"


@pytest.fixture(autouse=True)
def bucket() -> Iterator[None]:
    ensure_bucket()
    yield
    buckets.forget()


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(User.objects.create(username="operator", is_staff=True, is_superuser=True))
    return client


def page(client: Client, model: str, link: str = "", **query: object) -> str:
    answer = client.get(reverse(f"admin:{model}_changelist") + unescape(link), query or None)
    assert answer.status_code == 200, answer
    return str(answer.content.decode())


def detail(client: Client, model: str, pk: object) -> str:
    answer = client.get(reverse(f"admin:{model}_change", args=[pk]))
    assert answer.status_code == 200, answer
    return str(answer.content.decode())


def shown(html: str) -> list[str]:
    """Keys of the rows of a list, in order."""
    return re.findall(r'class="field-(?:key|called)[^"]*"><a href="[^"]+/([^/"]+)/change/"', html)


def ids(rows: Any) -> list[str]:
    return [str(pk) for pk in rows.order_by("-pk").values_list("pk", flat=True)]


def batch_of(sends: list[UUID], state: str = "accepted", status: str = "sent") -> Batch:
    now = timezone.now()
    batch = Batch.objects.create(
        provider="resend",
        channel="email",
        rail="transactional",
        state=state,
        send_ids=sends,
        digest=bytes(32),
        idempotency_key="key-1",
        rendered_at=now,
        finished_at=now,
        http_status=200,
    )
    Send.objects.filter(pk__in=sends).update(status=status, batch_id=batch.pk, accepted_at=now)
    return batch


def failed_send(tenant: Tenant) -> tuple[Send, DeadLetter]:
    pk = submit_some(tenant, 1, variables={"code": "sesame"})[0].id
    batch = batch_of([pk], status="failed")
    send = Send.objects.get(pk=pk)
    send.error_code, send.error_detail = "validation_error", "<b>refused</b>"
    send.save()
    letter = DeadLetter.objects.create(
        channel="email", send_id=pk, tenant=tenant, batch_id=batch.pk, reason="validation_error", detail="refused"
    )
    return send, letter


# ----------------------------------------------------------------------------------------------------------- sealed


def test_nothing_sealed_or_addressed_is_on_any_page(client: Client) -> None:
    tenant = make_tenant("acme")
    send, letter = failed_send(tenant)
    blast = make_blast(tenant, 3)
    pages = [page(client, model) for model in (SENDS, BLASTS, BATCHES, LETTERS)]
    pages += [detail(client, SENDS, send.pk), detail(client, BLASTS, blast.pk), detail(client, LETTERS, letter.pk)]
    pages += [detail(client, BATCHES, send.batch_id), page(client, SENDS, tenant="acme")]
    raw = Send.objects.get(pk=send.pk)
    for html in pages:
        for secret in ("user0@", "recipients.org", "sesame", bytes(raw.fingerprint).hex(), bytes(raw.sealed).hex()):
            assert secret not in html
        assert "memory at" not in html


def test_what_is_sealed_is_not_even_read(client: Client) -> None:
    send, letter = failed_send(make_tenant("acme"))
    with CaptureQueriesContext(connection) as queries:
        for model in (SENDS, BLASTS, BATCHES, LETTERS):
            page(client, model, tenant="acme") if model != BATCHES else page(client, model)
        detail(client, SENDS, send.pk)
        detail(client, LETTERS, letter.pk)
        detail(client, BATCHES, send.batch_id)
    read = [query["sql"] for query in queries.captured_queries]
    assert read
    assert not [sql for sql in read if re.search(r"sealed|\"fingerprint\"|\"digest\"", sql)]


# ------------------------------------------------------------------------------------------------------------- sends


def test_sends_are_listed_newest_first_and_page_by_page(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readonly.ReadOnlyAdmin, "list_per_page", 4)
    insert_raw(make_tenant("acme"), 10)
    seen: list[str] = []
    html = page(client, SENDS)
    for _ in range(3):
        seen += shown(html)
        older = re.search(r'href="(\?[^"]+)">Older', html)
        if older:
            html = page(client, SENDS, older[1])
    assert seen == ids(Send.objects)
    assert not older


def test_filters_and_their_combinations(client: Client) -> None:
    acme, bistro = make_tenant("acme"), make_tenant("bistro")
    blast, other = make_blast(acme, 6), make_blast(acme, 2)
    codes = [sent.id for sent in submit_some(bistro, 3)]
    batch_of(codes[:1])
    some = ids(Send.objects.filter(blast=blast))[:2]
    Send.objects.filter(pk__in=some).update(status="cancelled")

    def found(**query: object) -> list[str]:
        return sorted(shown(page(client, SENDS, **query)))

    def expected(**where: Any) -> list[str]:
        return sorted(ids(Send.objects.filter(**where)))

    assert found(status="sent") == [str(codes[0])]
    assert found(category="transactional") == expected(tenant=bistro)
    assert found(tenant="acme") == expected(tenant=acme)
    assert found(tenant="acme", status="cancelled") == sorted(some)
    assert found(blast=blast.pk) == expected(blast=blast)
    assert found(blast=blast.pk, status="queued") == expected(blast=blast, status="queued")
    assert found(blast=other.pk, tenant="acme") == expected(blast=other)
    assert found(blast=other.pk, tenant="bistro") == []
    assert found(tenant="nobody") == []
    assert "By blast" in page(client, SENDS, blast=blast.pk)
    assert "By blast" not in page(client, SENDS)


def test_a_page_that_is_sifted_says_how_far_it_looked(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyset, "SCAN", 5)
    insert_raw(make_tenant("acme"), 12)
    oldest = ids(Send.objects)[-1]
    Send.objects.filter(pk=oldest).update(status="cancelled")
    html, looks = page(client, SENDS, status="cancelled"), 1
    while not shown(html):
        assert "Nothing that fits in the rows that were looked through." in html
        further = re.search(r'href="(\?[^"]+)">Look further back', html)
        assert further
        html, looks = page(client, SENDS, further[1]), looks + 1
    assert (shown(html), looks) == ([oldest], 3)
    assert "Look further back" not in html


def test_search_by_id(client: Client) -> None:
    tenant = make_tenant("acme")
    sends = [sent.id for sent in submit_some(tenant, 3)]
    batch = batch_of(sends[:2])
    assert shown(page(client, SENDS, q=f" {sends[2]} ")) == [str(sends[2])]
    assert shown(page(client, SENDS, q=batch.pk)) == [str(pk) for pk in sends[:2]]
    assert shown(page(client, SENDS, q=new_id())) == []


def test_search_by_the_exact_address_within_a_tenant(client: Client) -> None:
    acme, bistro = make_tenant("acme"), make_tenant("bistro")
    mine = [str(sent.id) for sent in submit_some(acme, 3)]
    submit_some(bistro, 3)
    assert shown(page(client, SENDS, q="acme user1@recipients.org")) == [mine[1]]
    assert shown(page(client, SENDS, q="USER1@Recipients.org", tenant="acme")) == [mine[1]]
    assert shown(page(client, SENDS, q="acme user1@recipients.or")) == []
    assert shown(page(client, SENDS, q="acme")) == list(reversed(mine))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("user1@recipients.org", "An address is looked for within a tenant"),
        ("nobody user1@recipients.org", "There is no tenant “nobody”."),
        ("acme user1@", "What follows the tenant is no e-mail address."),
        ("@", "This is no e-mail address."),
        ("acme a@b.org c@d.org", "one address"),
        ("<script>alert(1)</script>", "There is no tenant “&lt;script&gt;alert(1)&lt;/script&gt;”."),
        ("' OR 1=1 --", "one address"),
    ],
)
def test_a_search_that_cannot_be_done_says_why(client: Client, query: str, words: str) -> None:
    submit_some(make_tenant("acme"), 2)
    html = page(client, SENDS, q=query)
    assert words in html
    assert shown(html) == []


@pytest.mark.parametrize("query", [{"p": "x"}, {"p": "1"}, {"blast": "x"}])
def test_a_mistaken_address_leads_back_to_the_list(client: Client, query: dict[str, str]) -> None:
    answer = client.get(reverse(f"admin:{SENDS}_changelist"), query)
    assert (answer.status_code, answer["Location"]) == (302, reverse(f"admin:{SENDS}_changelist") + "?e=1")


@pytest.mark.parametrize("lookup", ["fingerprint", "sealed__gt", "error_detail__regex", "tenant__name__icontains"])
def test_only_the_filters_that_are_offered_can_be_asked_for(client: Client, lookup: str) -> None:
    assert client.get(reverse(f"admin:{SENDS}_changelist"), {lookup: "x"}).status_code == 400


@pytest.mark.parametrize("query", [{"o": "1.-2"}, {"all": ""}, {"_facets": "True"}])
def test_django_s_own_parameters_change_nothing(client: Client, query: dict[str, str]) -> None:
    insert_raw(make_tenant("acme"), 3)
    assert shown(page(client, SENDS, **query)) == ids(Send.objects)


# ------------------------------------------------------------------------------------------------- rows, links, states


def test_a_dead_letter_says_what_can_be_done_with_it(client: Client) -> None:
    send, letter = failed_send(make_tenant("acme"))
    assert f"manage.py redrive {send.pk} --yes" in detail(client, LETTERS, letter.pk)
    record_death("importer", LookupError())
    of_actor = detail(client, LETTERS, DeadLetter.objects.get(send_id=None).pk)
    assert "ask for it again, by the same call" in of_actor
    assert "manage.py redrive" not in of_actor


def test_a_failed_send_leads_to_its_batch_its_dead_letter_and_back(client: Client) -> None:
    send, letter = failed_send(make_tenant("acme"))

    def links(html: str) -> set[str]:
        return set(re.findall(r'href="/admin/(\w+/\w+/[^/"]+)/change/"', html))

    to_send, to_batch = f"messaging/send/{send.pk}", f"messaging/batch/{send.batch_id}"
    to_letter = f"core/deadletter/{letter.pk}"
    html = detail(client, SENDS, send.pk)
    assert {to_batch, to_letter, f"core/tenant/{send.tenant_id}"} <= links(html)
    assert "&lt;b&gt;refused&lt;/b&gt;" in html
    assert {to_send, to_batch} <= links(detail(client, LETTERS, letter.pk)) & links(page(client, LETTERS))
    assert to_send in links(detail(client, BATCHES, send.batch_id))
    assert shown(page(client, LETTERS, q=send.pk)) == [str(letter.pk)]
    assert shown(page(client, LETTERS, tenant="acme", reason="validation_error")) == [str(letter.pk)]
    assert shown(page(client, LETTERS, q="nothing")) == []


def test_a_dead_actor_has_neither_send_nor_tenant(client: Client) -> None:
    letter = DeadLetter.objects.create(channel="email", reason="actor")
    assert shown(page(client, LETTERS)) == [str(letter.pk)]
    detail(client, LETTERS, letter.pk)


def test_a_blast_shows_how_it_stands_and_leads_to_its_sends(client: Client) -> None:
    tenant = make_tenant("acme")
    blast = make_blast(tenant, 10, name="<i>Spring</i>")
    Send.objects.filter(pk__in=ids(Send.objects)[:4]).update(status="cancelled")
    Blast.objects.filter(pk=blast.pk).update(
        hold_code="domain_unverified", hold_detail="<b>acme.org</b>", held_until=timezone.now()
    )
    html = detail(client, BLASTS, blast.pk)
    assert "&lt;i&gt;Spring&lt;/i&gt;" in html
    assert "&lt;b&gt;acme.org" in html
    assert 'state-held"' in html
    assert re.search(rf"blast={blast.pk}&amp;status=cancelled[^>]*>4<", html)
    assert re.search(rf"blast={blast.pk}&amp;status=queued[^>]*>6<", html)
    assert shown(page(client, BLASTS, tenant="acme")) == shown(page(client, BLASTS, state="running")) == [str(blast.pk)]
    assert shown(page(client, BLASTS, state="paused")) == []


def test_a_batch_shows_what_was_in_it_in_order(client: Client) -> None:
    sends = [sent.id for sent in submit_some(make_tenant("acme"), 3)]
    order = [sends[1], sends[2], sends[0]]
    batch = batch_of(order, state="unknown", status="sending")
    ProcessedJob.objects.create(job_key=f"batch:{batch.pk}", lease_until=timezone.now(), fence=3)
    html = detail(client, BATCHES, batch.pk)
    assert re.findall(r'/messaging/send/([^/]+)/change/"', html) == [str(pk) for pk in order]
    assert "fence 3" in html
    done = batch_of([new_id()])
    assert shown(page(client, BATCHES)) == [str(done.pk), str(batch.pk)]
    assert shown(page(client, BATCHES, state="unknown")) == shown(page(client, BATCHES, q=order[0])) == [str(batch.pk)]
    assert shown(page(client, BATCHES, q=done.pk)) == [str(done.pk)]
    assert shown(page(client, BATCHES, rail="marketing")) == []


def test_every_state_has_a_look() -> None:
    sheet = Path(readonly.__file__).parents[1] / "static" / "messaging" / "admin.css"
    styled = set(re.findall(r"\.state-(\w+)", sheet.read_text()))
    plain = {"scheduled", "queued", "cancelled"}  # waiting, or ended by choice: no colour of its own
    assert {*SendStatus, *BatchState, *BlastState} == (styled - {"held"}) | plain


@pytest.mark.parametrize(
    ("model", "query"),
    [
        (model, {name: value})
        for model, names in {
            SENDS: ("status", "category", "tenant", "blast"),
            BLASTS: ("state", "category", "tenant"),
            BATCHES: ("state", "rail"),
            LETTERS: ("tenant", "reason"),
        }.items()
        for name in names
        for value in ("x\0y", "nonsense")
    ],
)
def test_a_filter_by_what_is_not_offered_is_never_a_500(client: Client, model: str, query: dict[str, str]) -> None:
    make_tenant("acme")
    address, name = reverse(f"admin:{model}_changelist"), next(iter(query))
    for more in ({}, {"tenant": "acme"} if model in (SENDS, BLASTS, LETTERS) else {}):
        answer = client.get(address, more | query)
        if name in ("tenant", "reason") and "\0" not in query[name]:  # any text may be one
            assert (answer.status_code, shown(answer.content.decode())) == (200, [])
        else:
            assert answer.status_code == 302
            assert answer["Location"].endswith("?e=1")


def test_a_tenant_s_page_leads_to_what_it_sent(client: Client) -> None:
    tenant = make_tenant("acme")
    html = str(client.get(reverse("admin:core_tenant_change", args=[tenant.pk])).content.decode())
    for path in ("messaging/send", "messaging/blast", "core/deadletter"):
        assert f'/admin/{path}/?tenant=acme"' in html


# ------------------------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize("model", [SENDS, BLASTS, BATCHES, LETTERS])
def test_nothing_can_be_changed(client: Client, model: str) -> None:
    tenant = make_tenant("acme")
    send, letter = failed_send(tenant)
    pk = {SENDS: send.pk, BLASTS: make_blast(tenant, 1).pk, BATCHES: send.batch_id, LETTERS: letter.pk}[model]
    assert client.get(reverse(f"admin:{model}_add")).status_code == 403
    assert client.post(reverse(f"admin:{model}_change", args=[pk]), {"status": "sent"}).status_code == 403
    assert client.post(reverse(f"admin:{model}_delete", args=[pk]), {"post": "yes"}).status_code == 403
    action = {"action": "delete_selected", "_selected_action": [str(pk)], "post": "yes"}
    client.post(reverse(f"admin:{model}_changelist"), action)
    html = detail(client, model, pk)
    assert "deletelink" not in html
    assert "_save" not in html


def test_who_may_look_at_sends_alone_sees_sends_alone() -> None:
    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.add(Permission.objects.get(content_type__app_label="messaging", codename="view_send"))
    clerk = Client()
    clerk.force_login(user)
    assert page(clerk, SENDS)
    for model in (BLASTS, BATCHES, LETTERS):
        assert clerk.get(reverse(f"admin:{model}_changelist")).status_code == 403
