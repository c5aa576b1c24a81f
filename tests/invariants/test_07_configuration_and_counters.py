"""Invariant 7: live counters only in Redis; configuration only in `messaging_rate_limit_buckets`."""

from __future__ import annotations

from django.apps import apps
from django.conf import settings
from django.db.models import Model

from messaging.domain.rails import Rail
from messaging.ledger import buckets
from messaging.models import RateLimitBucket
from tests.factories import make_tenant, submit_some
from tests.rig import Rig, seed_buckets


def test_sending_changes_no_bucket_row(rig: Rig) -> None:
    before = list(RateLimitBucket.objects.values())
    submit_some(make_tenant(), 300, category="marketing")
    rig.drain(Rail.MARKETING)
    assert list(RateLimitBucket.objects.values()) == before


def test_no_table_has_a_column_for_a_level_of_tokens() -> None:
    models: list[type[Model]] = [m for app in ("core", "messaging") for m in apps.get_app_config(app).get_models()]
    names = {column.name for model in models for column in model._meta.local_fields}
    assert not any("token" in name or "remaining" in name or "available" in name for name in names)


def test_redis_holds_levels_and_no_limit(rig: Rig) -> None:
    """Capacity, refill and reserve come with each call: a change acts at the next one, and a flush forgets none."""
    seed_buckets(rate=4321.0, reserve=17.0)
    submit_some(make_tenant(), 1)
    rig.turn()
    values = [float(v) for v in rig.redis.hgetall(rig.governor.keys[0]).values() if v.replace(b".", b"").isdigit()]
    assert values
    assert not {4321.0, 17.0} & set(values)
    rig.redis.flushdb()
    submit_some(make_tenant(), 1)
    rig.turn()
    assert rig.sandbox.stats()["emails_accepted"] == 2


def test_nothing_else_configures_a_limit(rig: Rig) -> None:
    """Twice the refill in the row is twice the refill at the governor, and no setting knows a rate."""
    seed_buckets(rate=10.0)
    submit_some(make_tenant(), 1)
    rig.turn()
    slow = buckets.limits_of("resend")
    seed_buckets(rate=20.0)
    fast = buckets.limits_of("resend")
    assert slow is not None
    assert fast is not None
    assert (slow.request.refill, fast.request.refill) == (10.0, 20.0)
    assert [name for name in dir(settings) if "RATE" in name or "LIMIT" in name] == []
