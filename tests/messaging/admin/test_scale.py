"""The ledger's pages cost the same however long it is: their statements are executed anew and their buffers counted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from core.security.ids import new_id
from messaging.admin.keyset import SCAN
from messaging.models import Blast, Send
from tests.factories import make_blast, make_tenant, submit_some
from tests.messaging.ledger.plans import Plan
from tests.messaging.tenant_rig import ensure_bucket

SENDS = 300_000
#: Pages of 8 KB that a list's page may touch, and those that sifting may: `SCAN` rows and their index entries.
DIRECT, SIFTED = 1_500, 2_500

pytestmark = [pytest.mark.slow, pytest.mark.django_db, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ledger(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    """300,000 sends of a big tenant's blast, in batches of 100, a third of them failed with a dead letter; and a small
    tenant with a handful, older than all of them."""
    from django.db import transaction

    with django_db_blocker.unblock(), transaction.atomic():
        ensure_bucket()
        small, big = make_tenant("small"), make_tenant("big")
        singles = submit_some(small, 5)
        blast = make_blast(big, SENDS, name="Everybody")
        with connection.cursor() as cursor:
            for statement in _LATER_LIFE:
                cursor.execute(statement.replace("{id}", _ASCENDING.format(new_id())))
            cursor.execute(
                "ANALYZE messaging_sends, messaging_batches, core_dead_letters, messaging_blasts, core_tenants"
            )
        batch = _one("SELECT id FROM messaging_batches WHERE rail = 'marketing' LIMIT 1")
        yield {"blast": blast, "single": singles[0].id, "batch": batch}
        transaction.set_rollback(True)


#: As real ones are: in the order in which they are written.
_ASCENDING = "overlay('{}' placing lpad(to_hex(n), 8, '0') from 29)::uuid"
_LATER_LIFE = (
    """
    INSERT INTO messaging_batches (id, provider, channel, rail, state, send_ids, digest, idempotency_key, rendered_at,
                                   attempts, created_at, finished_at)
    SELECT {id}, 'resend', 'email', 'marketing', 'accepted', array_agg(id), '\\x00', 'k', now(), 1, now(), now()
    FROM (SELECT id, (row_number() OVER (ORDER BY id) - 1) / 100 AS n FROM messaging_sends WHERE blast_id IS NOT NULL) s
    WHERE n < 2000 GROUP BY n
    """,
    """
    INSERT INTO messaging_batches (id, provider, channel, rail, state, send_ids, digest, idempotency_key, rendered_at,
                                   attempts, created_at, finished_at)
    SELECT {id}, 'resend', 'email', 'transactional', 'accepted', ARRAY[gen_random_uuid()], '\\x00', 'k', now(),
           1, now(), now() FROM generate_series(1, 20000) n
    """,
    """
    UPDATE messaging_sends s SET batch_id = b.id, accepted_at = now(),
           status = CASE WHEN right(s.id::text, 1) < '5' THEN 'failed' ELSE 'sent' END
    FROM (SELECT id, unnest(send_ids) AS send_id FROM messaging_batches) b WHERE s.id = b.send_id
    """,
    """
    INSERT INTO core_dead_letters (channel, send_id, tenant_id, batch_id, reason, detail, redriven, created_at)
    SELECT 'email', id, tenant_id, batch_id, 'validation_error', '', 0, now() FROM messaging_sends WHERE status = 'failed'
    """,
)


def _one(statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
    assert row
    return row[0]


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(User.objects.create(username="operator", is_staff=True, is_superuser=True))
    return client


def cost(client: Client, path: str) -> tuple[int, int, str]:
    """Statements, pages touched by them in all, and the page."""
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(path)
    assert answer.status_code == 200
    buffers = 0
    with connection.cursor() as cursor:
        for query in queries.captured_queries:
            if not query["sql"].startswith("SELECT"):
                continue
            cursor.execute("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + query["sql"].replace("%", "%%"), [])
            found = cursor.fetchone()[0]
            plan = Plan((json.loads(found) if isinstance(found, str) else found)[0]["Plan"])
            assert not [offence for offence in plan.offences() if offence.startswith("Seq Scan")], query["sql"]
            buffers += plan.buffers
    return len(queries), buffers, answer.content.decode()


def older(html: str) -> str:
    """The last link to a further page."""
    return re.findall(r'href="(\?[^"]+)">(?:Older|Look further back)', html)[-1].replace("&amp;", "&")


LISTS = [
    # list, what is chosen, sifted or not
    ("messaging_send", "", DIRECT),
    ("messaging_send", "status=queued", SIFTED),
    ("messaging_send", "status=expired", SIFTED),  # there is none
    ("messaging_send", "category=transactional", SIFTED),  # the oldest of all
    ("messaging_blast", "", DIRECT),
    ("messaging_blast", "tenant=big", DIRECT),
    ("messaging_blast", "state=paused", DIRECT),
    ("messaging_batch", "", DIRECT),
    ("messaging_batch", "state=ambiguous", DIRECT),
    ("messaging_batch", "state=claimed", DIRECT),
    ("messaging_batch", "state=refused", SIFTED),
    ("core_deadletter", "", DIRECT),
    ("core_deadletter", "tenant=big", DIRECT),
    ("core_deadletter", "tenant=small", DIRECT),
    ("core_deadletter", "reason=no_such", SIFTED),
]


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize(("model", "query", "bound"), LISTS, ids=lambda value: str(value))
def test_a_page_of_a_list_is_bounded_and_so_is_the_next(client: Client, model: str, query: str, bound: int) -> None:
    path = reverse(f"admin:{model}_changelist")
    statements, buffers, html = cost(client, f"{path}?{query}")
    assert statements <= 9, "no more for more rows"
    assert buffers <= bound
    if ">Older<" in html or "Look further back" in html:
        _, buffers, html = cost(client, path + older(html))
        assert buffers <= bound


def test_the_millionth_row_is_as_near_as_the_first(client: Client, ledger: dict[str, Any]) -> None:
    far = Send.objects.order_by("pk")[60].pk
    _, buffers, html = cost(client, reverse("admin:messaging_send_changelist") + f"?p={far}")
    assert buffers <= DIRECT
    assert html.count('class="field-key') == 50


def test_tenant_blast_status_and_address(client: Client, ledger: dict[str, Any]) -> None:
    """These go through `messaging.ledger.listing`, whose plans are tested with it: here, that few statements do it."""
    path = reverse("admin:messaging_send_changelist")
    blast = ledger["blast"].pk
    for query, count in (
        ("tenant=small", 5),
        ("tenant=big", 50),
        (f"blast={blast}", 50),
        (f"blast={blast}&status=failed", 50),
        ("q=small+user3@recipients.org", 1),
        (f"q={ledger['batch']}", 100),
        (f"q={ledger['single']}", 1),
    ):
        statements, buffers, html = cost(client, f"{path}?{query}")
        assert html.count('class="field-key') == count, query
        assert statements <= 9
        assert buffers <= DIRECT, query


def test_the_page_of_a_row(client: Client, ledger: dict[str, Any]) -> None:
    send = Send.objects.filter(status="failed").values_list("pk", flat=True)[0]
    for model, pk in (("send", send), ("blast", ledger["blast"].pk), ("batch", ledger["batch"])):
        statements, buffers, _ = cost(client, reverse(f"admin:messaging_{model}_change", args=[pk]))
        assert statements <= 9
        assert buffers <= DIRECT
    assert Blast.objects.count() == 1
    assert SCAN * 10 < SENDS, "else nothing was shown"
