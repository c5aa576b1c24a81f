"""Actors for `test_jobs_processes`, served by a real worker: `python -m dramatiq tests.core.jobs.worker`.

What a test must know and cause while a job runs goes through Redis: `started` (the worker's pid), `go:PID`, `fenced`.
"""

from __future__ import annotations

import os
import sys

import django

django.setup()

import dramatiq  # noqa: E402
from django.conf import settings  # noqa: E402
from django.db import connection  # noqa: E402
from redis import Redis  # noqa: E402

from core.jobs.leases import FencedOut, hold, job  # noqa: E402

QUEUE = "tests.jobs"
LEASE = 1.5
redis = Redis.from_url(settings.REDIS_URL, socket_timeout=70)


def effect(work: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO test_effects VALUES (%s, %s)", [work, os.getpid()])


def _until_go() -> None:
    redis.rpush("started", os.getpid())
    redis.blpop([f"go:{os.getpid()}"], timeout=60)


@job(key=lambda work: f"write:{work}")
@dramatiq.actor(queue_name=QUEUE)
def write(work: str) -> None:
    effect(work)


@job(key=lambda work: f"slow:{work}", lease=LEASE)
@dramatiq.actor(queue_name=QUEUE)
def slow(work: str) -> None:
    """All of it in one transaction."""
    effect(work)
    _until_go()


@dramatiq.actor(queue_name=QUEUE)
def fetch(work: str) -> None:
    """Works outside a transaction, and has one for the result."""
    try:
        with hold(f"fetch:{work}", lease=LEASE) as held:
            _until_go()
            with held.result():
                effect(work)
    except FencedOut:
        redis.rpush("fenced", os.getpid())


@dramatiq.actor(queue_name=QUEUE)
def broken(password: str) -> None:
    raise LookupError(f"no such password: {password}")


# Dramatiq's own word for it is below the level of our logs.
sys.stdout.write("actors are declared\n")
sys.stdout.flush()
