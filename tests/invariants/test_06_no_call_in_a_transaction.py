"""Invariant 6: no provider call inside a transaction; batch and lease are committed before the call, durably."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from messaging.domain.rails import Channel
from messaging.providers.base import Answer
from messaging.providers.registry import adapters
from messaging.providers.resend.adapter import ResendAdapter
from tests.factories import make_tenant, statuses, submit_some
from tests.rig import Rig


class Watched(ResendAdapter):
    """Looks, at the moment of the request, at what another connection can see."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[tuple[Any, ...]] = []

    def send(self, body: bytes, **options: Any) -> Answer:
        assert not connection.in_atomic_block
        keys = ("dbname", "user", "password", "host", "port")
        parameters = {k: v for k, v in connection.get_connection_params().items() if k in keys}
        with psycopg.connect(**parameters) as other:
            self.seen += other.execute(
                "SELECT b.state, cardinality(b.send_ids), j.fence, j.lease_until > now() + interval '20 s', j.done_at IS NULL,"
                " (SELECT count(*) FROM messaging_sends s WHERE s.id = ANY (b.send_ids) AND s.status = 'sending')"
                " FROM messaging_batches b JOIN core_processed_jobs j ON j.job_key = 'batch:' || b.id"
            ).fetchall()
            self.seen += other.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%%'"
                " AND datname = current_database()"
            ).fetchall()
        return super().send(body, **options)


def test_batch_and_lease_are_visible_to_others_before_the_request_and_no_transaction_is_open(rig: Rig) -> None:
    submit_some(make_tenant(), 3)
    adapter = adapters()[Channel.EMAIL] = Watched(api_key="re_sandbox", base_url=rig.sandbox.url)
    rig.turn()
    assert adapter.seen == [("claimed", 3, 1, True, True, 3), (0,)]
    assert statuses() == {"sent": 3}


def test_a_ticket_served_inside_a_transaction_is_a_bug_and_sends_nothing(rig: Rig) -> None:
    submit_some(make_tenant(), 1)
    with pytest.raises(AssertionError, match="inside a transaction"), transaction.atomic():
        rig.turn()
    assert rig.sandbox.stats()["requests_received"] == 0


def test_commits_are_synchronous_whatever_the_database_s_default(rig: Rig) -> None:
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        cursor.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    try:
        connection.close()
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == ("on",)
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} RESET synchronous_commit")
