"""Jobs on a real broker and real workers, which are killed and frozen: the same work takes effect once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dramatiq
import pytest
from django.conf import settings
from django.db import connection
from redis import Redis

from core.models import ProcessedJob
from devtools.processes import Process, Supervisor
from devtools.stack import url_of
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180), pytest.mark.django_db(transaction=True)]
QUEUE = "tests.jobs"


class Workers:
    def __init__(self, supervisor: Supervisor, redis: Redis) -> None:
        self._supervisor, self.redis = supervisor, redis
        self._count = 0

    def start(self, threads: int = 2) -> Process:
        self._count += 1
        process = self._supervisor.start(
            f"worker-{self._count}",
            [sys.executable, "-m", "dramatiq", "tests.core.jobs.worker", "-p", "1", "-t", str(threads), "-Q", QUEUE],
            ready="actors are declared",
        )
        process.wait_ready()
        return process

    def ask(self, actor: str, work: str, times: int = 1) -> None:
        """The same work, each time under a message id of its own."""
        broker = dramatiq.get_broker()
        for _ in range(times):
            broker.enqueue(dramatiq.Message(queue_name=QUEUE, actor_name=actor, args=(work,), kwargs={}, options={}))

    def told(self, what: str) -> int:
        found = self.redis.blpop([what], timeout=60)
        assert found is not None, f"nobody said {what!r}"
        return int(found[1])

    def go(self, pid: int) -> None:
        """To one process: a frozen one still stands in line for whatever comes."""
        self.redis.rpush(f"go:{pid}", 1)

    def idle(self) -> bool:
        """Every message was acknowledged."""
        return self.redis.hlen(f"dramatiq:{QUEUE}.msgs") == 0


@pytest.fixture
def workers(redis: Redis, tmp_path: Path) -> Iterator[Workers]:
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATABASE_URL": url_of(connection.settings_dict),
        "REDIS_URL": settings.REDIS_URL,
        "dramatiq_worker_timeout": "20",
    }
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE test_effects (work text, pid int)")
    try:
        with Supervisor(tmp_path, env) as supervisor:
            yield Workers(supervisor, redis)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE test_effects")


def _effects() -> list[tuple[str, int]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT work, pid FROM test_effects ORDER BY work")
        return cursor.fetchall()


def _until(true: Callable[[], bool]) -> None:
    until(true, told=_effects)


def _fence(key: str) -> tuple[int, bool]:
    found = ProcessedJob.objects.get(pk=key)
    return found.fence, found.done_at is not None


def test_the_same_work_under_many_messages_takes_effect_once(workers: Workers) -> None:
    workers.start(4)
    workers.start(4)
    for work in "abcde":
        workers.ask("write", work, times=10)
    _until(workers.idle)
    assert [work for work, _ in _effects()] == list("abcde")


def test_a_duplicate_of_a_running_job_waits_its_turn_and_finds_it_done(workers: Workers) -> None:
    workers.start()
    workers.ask("fetch", "a")
    workers.told("started")
    workers.ask("slow", "b")  # another job is not kept waiting
    pid = workers.told("started")
    workers.ask("slow", "b")
    workers.go(pid)
    workers.go(pid)
    _until(workers.idle)
    assert [work for work, _ in _effects()] == ["a", "b"]
    assert _fence("slow:b") == (1, True)


@pytest.mark.parametrize("actor", ["slow", "fetch"])
def test_the_job_of_a_killed_worker_is_taken_over_after_its_lease(workers: Workers, actor: str) -> None:
    first = workers.start()
    workers.ask(actor, "a")
    workers.told("started")
    first.kill()
    assert _effects() == []
    workers.start()
    workers.go(_ask_until_started(workers, actor))
    _until(lambda: len(_effects()) == 1)
    _until(lambda: _fence(f"{actor}:a") == (2, True))


def _ask_until_started(workers: Workers, actor: str) -> int:
    """`slow` waits for the lease by itself; `fetch` has no decorator, and whoever asks must ask again."""
    while not workers.redis.llen("started"):
        if actor == "slow":
            workers.ask(actor, "a")
            return workers.told("started")
        workers.ask(actor, "a")
        time.sleep(0.1)
    return workers.told("started")


def test_a_frozen_worker_that_wakes_after_its_lease_cannot_commit(workers: Workers) -> None:
    frozen = workers.start()
    workers.ask("fetch", "a")
    first = workers.told("started")
    frozen.pause()
    other = workers.start()
    workers.go(_ask_until_started(workers, "fetch"))
    _until(lambda: len(_effects()) == 1)
    frozen.resume()
    workers.go(first)
    assert _is_of(workers.told("fenced"), frozen)
    assert len(_effects()) == 1
    assert _is_of(_effects()[0][1], other)
    assert _fence("fetch:a") == (2, True)


def test_a_worker_frozen_in_its_transaction_holds_nobody_up_and_cannot_commit(workers: Workers) -> None:
    frozen = workers.start()
    workers.ask("slow", "a")
    first = workers.told("started")
    frozen.pause()
    other = workers.start()
    workers.ask("slow", "a")
    workers.go(workers.told("started"))
    _until(lambda: len(_effects()) == 1)
    frozen.resume()
    workers.go(first)
    _until(workers.idle)
    assert len(_effects()) == 1
    assert _is_of(_effects()[0][1], other)


def _is_of(pid: int, worker: Process) -> bool:
    return os.getpgid(pid) == worker.pid


def test_an_actor_that_dies_of_a_bug_leaves_one_dead_letter_without_its_arguments(workers: Workers) -> None:
    from core.models import DeadLetter

    workers.start()
    workers.ask("broken", "hunter2", times=3)
    _until(workers.idle)
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.times, letter.send_id) == ("actor_died", 3, None)
    assert letter.detail.startswith("broken: LookupError at ")
    assert "raise LookupError" in letter.traceback
    assert "hunter2" not in letter.detail + letter.traceback


def test_workers_end_on_sigterm_after_the_job_in_hand(workers: Workers) -> None:
    worker = workers.start()
    workers.ask("fetch", "a")
    pid = workers.told("started")
    worker.send_signal(signal.SIGTERM)
    workers.go(pid)
    assert worker.terminate() == 0
    assert len(_effects()) == 1
