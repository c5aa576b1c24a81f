"""A worker process, started by dramatiq's own command line: it stops once, however often it is told, not with a thread dead."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dramatiq
import pytest
from django.conf import settings
from redis import Redis

from core.broker import processes
from core.broker.broker import RailBroker
from devtools.processes import Process, Supervisor
from tests.core.broker.rig import message, until, waiting

QUEUE = "rig"
THREADS = 4


@pytest.fixture
def broker(redis: Redis) -> RailBroker:
    return RailBroker(url=settings.REDIS_URL, middleware=[])


@pytest.fixture
def start(redis: Redis, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    with Supervisor(tmp_path, {**os.environ, "RIG_REDIS_URL": settings.REDIS_URL}) as supervisor:

        def start(name: str = "worker") -> Process:
            process = supervisor.start(
                name,
                [
                    *(sys.executable, "-m", "dramatiq", "tests.core.broker.worker", "--processes", "1"),
                    *("--threads", str(THREADS), "--queues", QUEUE, "--worker-shutdown-timeout", "30000"),
                ],
                ready="Worker process is ready for action",
            )
            process.wait_ready()
            return process

        yield start


def _begin(broker: RailBroker, redis: Redis, jobs: int) -> None:
    """Enqueue so many jobs; return when as many as there are threads have begun."""
    for number in range(jobs):
        broker.enqueue(message("slow", QUEUE, number))
    until(lambda: redis.llen("rig.begun") >= min(jobs, THREADS))


def _let_end(redis: Redis, *numbers: int) -> None:
    for number in numbers:
        redis.rpush(f"rig.go.{number}", "1")


def _seen(redis: Redis, what: str) -> set[int]:
    return {int(number) for number in redis.lrange(f"rig.{what}", 0, -1)}


def _exit_code(process: Process) -> int | None:
    until(lambda: not process.running, seconds=30)
    return process.exit_code


@pytest.mark.process
def test_a_signal_to_the_whole_group_lets_every_job_in_hand_end(
    broker: RailBroker, redis: Redis, start: Callable[..., Process]
) -> None:
    worker = start()
    _begin(broker, redis, THREADS + 3)
    assert waiting(redis, QUEUE) == 3, "no more are fetched than there are threads"
    os.killpg(worker.pid, signal.SIGTERM)
    worker.wait_log("Stopping worker process", 10)
    # The parent's is the second one, but may have met the first on its way; these cannot.
    os.killpg(worker.pid, signal.SIGTERM)
    until(lambda: worker.written().count("Sending signal 'SIGTERM' to subprocesses") == 2)
    _let_end(redis, *range(THREADS + 3))
    assert _exit_code(worker) == 0
    assert "Killing" not in worker.written()
    assert len(_seen(redis, "begun")) == THREADS, "none is begun after the signal"
    assert _seen(redis, "ended") == _seen(redis, "begun")
    # And the others are there for the next worker.
    assert waiting(redis, QUEUE) == redis.hlen(f"dramatiq:{QUEUE}.msgs") == 3
    assert redis.keys("dramatiq:__acks__*") == []


@pytest.mark.process
def test_while_it_stops_it_takes_nothing_that_others_could_do(
    broker: RailBroker, redis: Redis, start: Callable[..., Process]
) -> None:
    """Dramatiq's consumers go on fetching until the last job has ended."""
    stopping = start()
    _begin(broker, redis, 2)  # two threads are free
    stopping.send_signal(signal.SIGTERM)
    stopping.wait_log("Shutting down", 10)
    broker.enqueue(message("slow", QUEUE, 7))
    other = start("other")
    _let_end(redis, 7)
    until(lambda: _seen(redis, "ended") == {7})
    assert stopping.running
    _let_end(redis, 0, 1)
    assert _exit_code(stopping) == 0
    assert _seen(redis, "ended") == {0, 1, 7}
    assert other.terminate() == 0


@pytest.mark.process
@pytest.mark.parametrize("kind", ["consumer", "worker"])
def test_a_dead_thread_stops_the_process_so_that_it_is_started_again(
    broker: RailBroker, redis: Redis, start: Callable[..., Process], kind: str
) -> None:
    worker = start()
    _begin(broker, redis, 1)
    broker.enqueue(message("kill_thread", QUEUE, kind))
    worker.wait_log("worker_thread_died", 20)
    assert worker.running, "the job in hand is finished first"
    _let_end(redis, 0)
    assert _exit_code(worker) == 1
    assert _seen(redis, "ended") == {0}
    assert redis.keys("dramatiq:__acks__*") == []


def test_a_repeated_signal_is_the_same_one_a_later_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(processes.time, "monotonic", lambda: now)
    heard: list[int] = []
    handle = processes._once(lambda: heard.append(0), lambda number, frame: heard.append(number))
    handle(signal.SIGTERM, None)
    handle(signal.SIGHUP, None)
    now += processes.ONE_SIGNAL_SECONDS - 0.1
    handle(signal.SIGTERM, None)
    assert heard == [0, signal.SIGTERM]
    now += 0.2
    handle(signal.SIGTERM, None)
    assert heard == [0, signal.SIGTERM, signal.SIGTERM]


def test_the_project_s_worker_is_one() -> None:
    assert any(isinstance(m, processes.WorkerProcess) for m in dramatiq.get_broker().middleware)
