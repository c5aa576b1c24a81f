"""SIGTERM to a worker's whole process group, in the middle of a blast: each request in hand ends and is recorded."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from redis import Redis

from core.models import Tenant
from devtools.stack import Stack, url_of
from messaging.models import Batch, Send, SenderDomain
from messaging.planner import plan_blast
from tests.core.broker.rig import until
from tests.rig import seed_buckets

pytestmark = pytest.mark.process

_SENDS = 2_000


@pytest.fixture
def stack(transactional_db: None, redis: Redis, tmp_path: Path) -> Iterator[Stack]:
    seed_buckets()
    with Stack(
        data_dir=tmp_path / "stack",
        database_url=url_of(connection.settings_dict),
        redis_url=settings.REDIS_URL,
        sandbox_flags=["--rate", "0", "--latency-ms", "300"],
        workers={"marketing": 1},
        threads=4,
        web=False,
    ) as started:
        yield started


def test_no_request_is_cut_and_nothing_is_lost_or_doubled(stack: Stack, tmp_path: Path) -> None:
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    SenderDomain.objects.create(tenant=tenant, domain="acme.example")
    recipients = tmp_path / "list.csv"
    recipients.write_text("to\n" + "".join(f"reader{number}@inbox.example\n" for number in range(_SENDS)))
    plan_blast(tenant, recipients=recipients, from_="hello@acme.example", subject="News", text="News")
    worker = stack.worker("marketing")

    for restart in range(2):
        stack.sandbox.wait(requests=3 + 4 * restart)
        os.killpg(worker.pid, signal.SIGTERM)
        worker.wait_log("Stopping worker process", 10)
        os.killpg(worker.pid, signal.SIGTERM)
        until(lambda: not worker.running, seconds=30)
        assert worker.exit_code == 0
        assert "Killing" not in worker.written()
        # Every request that was made has its answer in the ledger: nothing waits for a lease.
        assert set(Batch.objects.values_list("state", flat=True)) == {"accepted"}
        assert Batch.objects.count() == stack.sandbox.stats()["requests_received"]
        assert Send.objects.filter(status="sending").count() == 0
        worker.start()

    stack.sandbox.wait(emails=_SENDS, timeout=30)
    stats = stack.sandbox.stats()
    assert (stats["emails_accepted"], stats["doubles"], stats["requests_received"]) == (_SENDS, 0, _SENDS // 100)
    until(lambda: Send.objects.filter(status="sent").count() == _SENDS)
