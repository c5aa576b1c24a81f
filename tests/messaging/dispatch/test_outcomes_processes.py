"""What becomes of answers, seen with real workers: a 429 loses nothing and counts nothing, and what has used up its attempts
is a dead letter that names its send."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone
from redis import Redis

from core.governor.client import Governor
from core.models import DeadLetter, Tenant
from devtools.stack import Stack, url_of
from messaging.dispatch.outcomes import MAX_ATTEMPTS
from messaging.models import Batch, Send
from tests.factories import make_tenant, statuses, submit_some
from tests.rig import seed_buckets
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    seed_buckets()
    return make_tenant("a")


@pytest.fixture
def stack(tenant: Tenant, redis: Redis, tmp_path: Path) -> Iterator[Stack]:
    with Stack(
        data_dir=tmp_path,
        database_url=url_of(connection.settings_dict),
        redis_url=settings.REDIS_URL,
        sandbox_flags=["--rate", "0", "--latency-ms", "10"],
        web=False,
    ) as stack:
        yield stack


_until = partial(until, told=statuses)


def test_a_provider_429_causes_back_off_and_zero_dropped_messages(stack: Stack, tenant: Tenant) -> None:
    stack.sandbox.fault("429", count=3)
    submit_some(tenant, 5)
    submit_some(tenant, 150, category="marketing")
    _until(lambda: statuses() == {"sent": 155})
    stats = stack.sandbox.stats()
    assert (stats["emails_accepted"], stats["send_ids"], stats["doubles"]) == (155, 155, 0)
    assert set(Send.objects.values_list("attempts", flat=True)) == {1}  # the accepted one; a 429 is none
    limited = list(Batch.objects.filter(state="rate_limited").order_by("finished_at"))
    taken = list(Batch.objects.filter(state="accepted").order_by("created_at"))
    assert len(limited) == 3
    assert limited[0].finished_at is not None
    # However many were under way at once: nothing is taken before a Retry-After of one second is over.
    assert (taken[0].created_at - limited[0].finished_at).total_seconds() > 0.4
    assert not DeadLetter.objects.exists()


def test_exhausted_retries_land_in_dead_letters_with_the_send_id_attached(stack: Stack, tenant: Tenant) -> None:
    """One attempt is left, and nobody listens at the provider's address."""
    doomed, fresh = (
        submission.id for submission in submit_some(tenant, 2, not_before=timezone.now() + timedelta(hours=1))
    )
    Send.objects.filter(pk=doomed).update(attempts=MAX_ATTEMPTS - 1)
    stack.sandbox.away(3)
    Send.objects.filter(pk__in=[doomed, fresh]).update(not_before=timezone.now())
    _until(lambda: DeadLetter.objects.exists())
    letter = DeadLetter.objects.get()
    assert (letter.send_id, letter.reason) == (doomed, "attempts_exhausted")
    assert letter.batch_id is not None
    assert Send.objects.get(pk=doomed).attempts == MAX_ATTEMPTS
    _until(lambda: statuses() == {"failed": 1, "sent": 1})  # the other one had attempts left
    assert stack.sandbox.stats()["emails_accepted"] == 1


def test_a_stranger_s_code_closes_the_circuit_that_one_tenant_s_contents_opened(
    stack: Stack, tenant: Tenant, redis: Redis
) -> None:
    """Whose next probe is ten minutes away."""
    stack.sandbox.fault("500_contains", contains="poison")
    state = Governor(redis, "resend").keys[0]
    for n in range(1, 9):
        submit_some(tenant, 1, subject=f"poison {n}")
        _until(lambda n=n: Batch.objects.filter(state="unknown").count() == n)
    _until(lambda: redis.hget(state, "circuit") == b"unreachable")
    redis.hset(state, mapping={"permit": "", "permit_until": "0", "probe_at": str(time.time() + 600)})
    submit_some(tenant, 3)
    stranger = make_tenant("b")
    submit_some(stranger, 1)
    _until(lambda: statuses(tenant=stranger) == {"sent": 1})
    _until(lambda: statuses(tenant=tenant) == {"sending": 8, "sent": 3})
    assert stack.sandbox.stats()["doubles"] == 0
