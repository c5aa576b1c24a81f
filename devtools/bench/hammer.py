"""The governor alone, on a provider of its own name: how long a decision takes. Called by `devtools.bench.inside`."""

from __future__ import annotations

import random
import time
from itertools import count
from typing import Any

import redis
from django.conf import settings

from core.governor.client import Bucket, Event, Governor, Limits, Want

_numbers = count()
_WIDE = Bucket(1_000_000_000, 1_000_000)
_NONE = Bucket(1, 0.001)
_TENANT = Bucket(1_000_000, 1_000_000)
_FILL = 1_000


def hammer(tenants: int, candidates: int, decisions: int) -> dict[str, Any]:
    """So many grants to so many candidates each, with the tokens of `tenants` tenants in Redis, over one connection.

    Seconds of each acquire and each settle, and of acquires that are refused for want of a global token.
    """
    provider = f"bench{next(_numbers)}"
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        governor = Governor(client, provider)
        levels = {str(tenant): f"1000000.000000:{time.time():.6f}:0.000000" for tenant in range(1, tenants + 1)}
        names = list(levels)
        for start in range(0, tenants, _FILL):
            client.hset(governor.keys[1], mapping={name: levels[name] for name in names[start : start + _FILL]})
        try:
            return _measure(governor, tenants, min(candidates, tenants), decisions)
        finally:
            client.delete(*governor.keys)


def _measure(governor: Governor, tenants: int, candidates: int, decisions: int) -> dict[str, Any]:
    chance = random.Random(1)
    wide, tight = Limits(_WIDE), Limits(_NONE)
    acquires, settles, refusals = [], [], []
    governor.acquire(
        grant="warm", batch="warm", rail="marketing", limits=wide, max_batch=100, wants=[Want(1, 2, 1, _TENANT)]
    )
    for number in range(decisions):
        first = chance.randrange(tenants - candidates + 1) + 1
        wants = [Want(tenant, 2, 100, _TENANT) for tenant in range(first, first + candidates)]
        began = time.perf_counter()
        decision = governor.acquire(
            grant=f"g{number}", batch=f"g{number}", rail="marketing", limits=wide, max_batch=100, wants=wants
        )
        took = time.perf_counter()
        governor.settle(
            grant=f"g{number}",
            batch=f"g{number}",
            rail="marketing",
            event=Event.ACCEPTED,
            limits=wide,
            epoch=decision.epoch,
            remaining=None,
        )
        acquires.append(took - began)
        settles.append(time.perf_counter() - took)
        if not decision.granted or sum(decision.shares) != 100:
            raise AssertionError(f"Bug: {decision} for a bucket that never runs empty")
    empty = Governor(governor._client, "bench-empty")
    for number in range(decisions):
        began = time.perf_counter()
        empty.acquire(
            grant=f"r{number}", batch=f"r{number}", rail="marketing", limits=tight, max_batch=100, wants=wants
        )
        if number:  # the first finds a token
            refusals.append(time.perf_counter() - began)
    return {"acquire": acquires, "settle": settles, "refused": refusals}
