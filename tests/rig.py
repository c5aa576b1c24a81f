"""The dispatcher in the test's own process, on real parts: PostgreSQL, Redis, and the sandbox as provider."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import connection
from redis import Redis

from core.governor.client import Governor
from devtools.sandbox.process import Sandbox
from messaging.dispatch import leader, run_ticket, scheduler, turn
from messaging.dispatch.recording import Recorded
from messaging.domain.rails import Channel, Rail
from messaging.ledger import buckets, sender_holds
from messaging.ledger.batch import Bound
from messaging.models import Batch, RateLimitBucket
from messaging.providers import registry
from messaging.providers.base import Adapter
from messaging.providers.resend.adapter import ResendAdapter
from messaging.services import sender_domains

log = logging.getLogger(__name__)


def seed_buckets(*, rate: float = 1000.0, **values: Any) -> None:
    """A global bucket so wide that nothing waits, unless told otherwise, and the tenants' default."""
    RateLimitBucket.objects.update_or_create(
        provider="resend",
        scope="global",
        unit="request",
        tenant=None,
        defaults={"capacity": max(1.0, rate), "refill_per_second": rate} | values,
    )
    RateLimitBucket.objects.update_or_create(
        provider="resend",
        scope="tenant",
        unit="send",
        tenant=None,
        defaults={"capacity": 1000.0, "refill_per_second": 1000.0},
    )
    buckets.forget()


class Rig:
    """Serves tickets by hand: `turn(rail)` is one ticket on the transactional or marketing rail of e-mail."""

    def __init__(self, sandbox: Sandbox, redis: Redis) -> None:
        self.sandbox = sandbox
        self.redis = redis
        self.governor = Governor(redis, "resend")

    def turn(self, rail: Rail = Rail.TRANSACTIONAL) -> Recorded | None:
        return run_ticket(Channel.EMAIL, rail)

    def drain(self, rail: Rail = Rail.TRANSACTIONAL, at_most: int = 100) -> list[Recorded]:
        """Turns until there is nothing more to do."""
        done = []
        for _ in range(at_most):
            recorded = self.turn(rail)
            if recorded is None:
                return done
            done.append(recorded)
        raise AssertionError(f"still work after {at_most} turns")

    def lapse_leases(self) -> None:
        """As if the leases of all open batches had run out now."""
        with connection.cursor() as cursor:
            cursor.execute("UPDATE core_processed_jobs SET lease_until = now() - interval '1 s' WHERE done_at IS NULL")

    def unblock(self) -> None:
        """As if a block by a 429, or the waiting time of a probe, were over now."""
        self.redis.hset(self.governor.keys[0], mapping={"blocked": "0", "probe_at": "0", "tokens": "1", "at": "0"})

    def accepted_ids(self) -> list[str]:
        """The send ids that the provider took, in its order; one taken twice stands twice."""
        return [line["tags"]["send_id"] for line in self.sandbox.log()]

    def circuit(self) -> str:
        return (self.redis.hget(self.governor.keys[0], "circuit") or b"").decode()

    def batch(self) -> Batch:
        return Batch.objects.get()

    def batches(self) -> list[Batch]:
        return list(Batch.objects.order_by("id"))


@contextmanager
def rigged(sandbox: Sandbox, redis: Redis, adapter: Adapter | None = None) -> Iterator[Rig]:
    """A rig whose channel e-mail goes to `sandbox`, through `adapter` if given. Nothing is remembered afterwards."""
    _forget()
    registry.adapters()[Channel.EMAIL] = adapter or ResendAdapter(api_key="re_sandbox", base_url=sandbox.url)
    seed_buckets()
    try:
        yield Rig(sandbox, redis)
    finally:
        _forget()


def _forget() -> None:
    registry.adapters.cache_clear()
    turn.governor_of.cache_clear()
    scheduler._memories.clear()
    leader._leaders.clear()
    buckets.forget()
    sender_holds.forget()
    sender_domains.forget()


def ids(submitted: list[Any]) -> list[UUID]:
    return [s.id for s in submitted]


def prepare(line: turn.Line, grant: scheduler.Grant) -> Bound | None:
    """From a grant to the batch that may be requested: claimed, rendered, committed."""
    work, _ = turn.take_work(line, grant)
    return turn.make_ready(line, grant, work) if work else None
