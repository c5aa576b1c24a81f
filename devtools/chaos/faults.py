"""What is done to the system. Each fault is a generator: it does something, yields the seconds until it goes on, and returns a
note for the timeline. One thread runs all of them (`driver`), so two of them never do something at once."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

import psycopg
import redis
import requests

from devtools.chaos.schedule import KINDS
from devtools.freezing import CLAIM, RECORD, Within, blocked, stands_still
from devtools.processes import Process, ProcessDied
from devtools.stack import RAILS, Stack

Act = Generator[float, None, str]
T = TypeVar("T")

_AGAIN_SECONDS = 0.2
_NAP_SECONDS = 0.05
#: A fault of the provider's that has struck nothing yet goes on for so long at most.
_MISSED_SECONDS = 5.0
#: A frozen worker's batch is repeated by another one in a request of so many seconds: it wakes before that ends. From so long
#: before the lease's end on.
_REPEATED_SECONDS, _BEFORE_LEASE_ENDS = 4.0, 10.0
#: Beyond the lease, for a frozen worker's batch to be taken over: an open circuit tries at most every 15 s.
_TAKE_OVER_SECONDS = 60.0
#: For the answers of a worker that was frozen to be recorded, or not.
_THAW_SECONDS = 10.0
#: Above a request to the provider (10 s) and the worker's own stop.
_STOP_SECONDS = 25.0
_NAMESPACE = "dramatiq"
_QUEUES = tuple(f"notif.email.{rail}" for rail in RAILS)
#: A frozen worker's requests are in flight for so long, so that there are some.
_SLOW_SECONDS = 1.5
#: For so long somebody is looked for who is in such a transaction: when everything is sent, nobody will be.
_LOOKING_SECONDS = 30.0
#: Whoever is to be frozen in a transaction is kept in it for so long at most: others wait for the same lock meanwhile.
_OBSTRUCTED_SECONDS = 0.5
CODES_RAIL = "transactional"
_FENCED_OUT = re.compile(r"\bbatch_recorded\b.*\bfenced_out=True\b")
_IN_FLIGHT = """
SELECT id::text FROM messaging_batches
WHERE rail = %s AND state = 'claimed' AND created_at > clock_timestamp() - interval '1500 milliseconds'
"""
_STILL_IN_FLIGHT = "SELECT id::text FROM messaging_batches WHERE id = ANY (%s::uuid[]) AND state = 'claimed'"
_TAKEN_OVER = "SELECT count(*) FROM core_processed_jobs WHERE job_key = ANY (%s::text[]) AND fence > 1"


class Scene:
    """The running system, and which of its processes are in the hands of a fault."""

    def __init__(self, stack: Stack, random: Random) -> None:
        self.stack = stack
        self.random = random
        self.held: set[Process] = set()
        self._second_clock: Process | None = None
        self._commands: dict[str, Process] = {}

    def processes(self) -> list[Process]:
        """Those that should be running, but for faults."""
        return [*(worker for rail in RAILS for worker in self.stack.workers(rail)), self.stack.clock, self.stack.web]

    def worker(self, rail: str | None = None) -> Generator[float, None, Process]:
        """One that no fault has."""
        while True:
            rails = RAILS if rail is None else (rail,)
            free = [worker for name in rails for worker in self.stack.workers(name) if worker not in self.held]
            if free:
                return self.random.choice(free)
            yield _AGAIN_SECONDS

    @contextmanager
    def hold(self, process: Process) -> Generator[None, None, None]:
        self.held.add(process)
        try:
            yield
        finally:
            self.held.discard(process)

    def tell(self, call: Callable[[], T]) -> Generator[float, None, T]:
        """Tell the sandbox something, also one that is away at the moment."""
        while True:
            try:
                return call()
            except requests.ConnectionError:
                yield _AGAIN_SECONDS

    def server(self, name: str, *steps: str | float) -> Act:
        """Tell a server's keeper, and wait, one after the other; others go on meanwhile. A server has one fault at a time."""
        command = self._commands.get(name)
        while command and command in self.held:
            yield _AGAIN_SECONDS
        if command is None:
            command = self._commands[name] = self.stack.keeper_command(name)
        with self.hold(command):
            for step in steps:
                if isinstance(step, float):
                    yield step
                    continue
                command.command[-2:] = [step, name]
                command.start()
                while command.running:
                    yield _NAP_SECONDS
                if command.terminate(0):
                    raise ProcessDied(command, f"could not {step} {name}")
        return ""

    def second_clock(self) -> Process:
        if self._second_clock is None:
            self._second_clock = self.stack.start_clock("clock-2")
        elif not self._second_clock.running:
            self._second_clock.start()
        return self._second_clock


def _killed(scene: Scene, process: Process, seconds: float) -> Act:
    while process in scene.held:
        yield _AGAIN_SECONDS
    with scene.hold(process):
        process.kill()
        yield seconds
        process.start()
    return process.name


def worker_killed(scene: Scene, seconds: float) -> Act:
    worker = yield from scene.worker()
    return (yield from _killed(scene, worker, seconds))


def worker_stopped(scene: Scene, seconds: float) -> Act:
    worker = yield from scene.worker()
    with scene.hold(worker):
        worker.ask_group_to_stop()
        waited = 0.0
        while worker.running and waited < _STOP_SECONDS:
            yield 0.1
            waited += 0.1
        code = worker.terminate(0)
        worker.start()
    return f"{worker.name}, exit code {code}"


def _provider(kind: str, *, share: float | None = None, **fields: Any) -> Callable[[Scene, float], Act]:
    """A fault of the sandbox's. `share` of the requests it strikes: drawn, if it is not given."""

    def act(scene: Scene, seconds: float) -> Act:
        sandbox = scene.stack.sandbox
        strikes = share or scene.random.choice((1.0, 1.0, 0.5))
        more = {"probability": strikes, "seed": scene.random.randrange(1_000_000), **fields}
        fault = yield from scene.tell(lambda: sandbox.fault(kind, **more))
        yield seconds
        waited, hits = 0.0, 0
        while not hits and waited < _MISSED_SECONDS:
            yield _AGAIN_SECONDS
            waited += _AGAIN_SECONDS
            active = yield from scene.tell(sandbox.faults)
            hits = sum(one["hits"] for one in active if one["id"] == fault)
        yield from scene.tell(lambda: sandbox.clear_fault(fault))
        return f"{hits} requests" + (f", {strikes:.0%} of all" if strikes < 1 else "")

    return act


def outage(scene: Scene, seconds: float) -> Act:
    yield from scene.tell(lambda: scene.stack.sandbox.away(seconds * 0.6))
    yield seconds * 0.6
    note = yield from _provider("500", share=1.0)(scene, seconds * 0.4)
    return f"nothing listens for {seconds * 0.6:.0f} s; then 500 to {note}"


def tickets_doubled(scene: Scene, seconds: float) -> Act:
    copies = 0
    with closing(redis.Redis.from_url(scene.stack.redis_url, socket_timeout=1)) as client:
        for _ in range(max(1, int(seconds / 0.1))):
            for queue in _QUEUES:
                with suppress(redis.RedisError):  # it may be down just now
                    copies += _copy(client, f"{_NAMESPACE}:{queue}")
            yield 0.1
    return f"{copies} copies"


def _copy(client: redis.Redis, queue: str) -> int:
    """Each ticket that waits or is in hand: once more under its own id, and three times as messages of their own."""
    copies = 0
    for old, message in cast("dict[bytes, bytes]", client.hgetall(f"{queue}.msgs")).items():
        client.lpush(queue, old)
        for _ in range(3):
            new = str(uuid.uuid4()).encode()
            client.hset(f"{queue}.msgs", new.decode(), message.replace(old, new).decode())
            client.lpush(queue, new)
        copies += 4
        if copies >= 40:
            break
    return copies


def tickets_deleted(scene: Scene, seconds: float) -> Act:
    deleted = 0
    with closing(redis.Redis.from_url(scene.stack.redis_url, socket_timeout=1)) as client:
        for _ in range(max(1, int(seconds / 0.05))):
            for queue in _QUEUES:
                with suppress(redis.RedisError):
                    key = f"{_NAMESPACE}:{queue}"
                    deleted += client.llen(key)
                    client.delete(key, f"{key}.msgs")
            yield 0.05
    return f"{deleted} tickets"


def two_clocks(scene: Scene, seconds: float) -> Act:
    clock = scene.second_clock()
    yield seconds
    clock.kill()
    return ""


def snapshot(scene: Scene, seconds: float) -> Act:
    """Taken anew if a restart of the server ends it."""
    left, taken = seconds, 0
    while left > 0:
        with suppress(psycopg.OperationalError), psycopg.connect(scene.stack.database_url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT count(*) FROM messaging_sends")
            taken += 1
            while left > 0:
                yield min(1.0, left)
                left -= 1.0
                connection.execute("SELECT 1")
        yield 0.2
        left -= 0.2
    return f"{taken} snapshots" if taken > 1 else ""


def worker_frozen(scene: Scene, seconds: float) -> Act:
    """Frozen with requests in flight, some of which are answered 429 meanwhile; woken while another worker repeats one of
    them. To give its sends back then, or to write down anything but an acceptance, would send them twice."""
    sandbox = scene.stack.sandbox
    slow = yield from scene.tell(lambda: sandbox.fault("slow", extra_ms=_SLOW_SECONDS * 1000))
    refused = yield from scene.tell(lambda: sandbox.fault("429", probability=0.5, retry_after=1))
    worker, batches = yield from _freeze(scene)
    before = fenced_out(worker.log)
    try:
        for fault in (slow, refused):
            yield from scene.tell(partial(sandbox.clear_fault, fault))
        yield seconds - _BEFORE_LEASE_ENDS
        slow = yield from scene.tell(lambda: sandbox.fault("slow", extra_ms=_REPEATED_SECONDS * 1000))
        yield from _until_taken_over(scene, batches)
        yield _REPEATED_SECONDS / 8  # if there are several, the others are, too
    finally:
        worker.resume()
        scene.held.discard(worker)
    waited = 0.0
    while (fenced := fenced_out(worker.log) - before) < len(batches) and waited < _THAW_SECONDS:
        yield _AGAIN_SECONDS
        waited += _AGAIN_SECONDS
    yield from scene.tell(partial(sandbox.clear_fault, slow))
    return f"{worker.name}, {len(batches)} batches in hand, {fenced} answers fenced out"


def fenced_out(log: Path) -> int:
    """Answers for batches that were another worker's by then."""
    return len(_FENCED_OUT.findall(log.read_text(errors="replace")))


def _freeze(scene: Scene) -> Generator[float, None, tuple[Process, list[str]]]:
    """A worker that had batches in hand, and which: those that were in flight then and still are when all others have had
    their answers."""
    while True:
        yield _SLOW_SECONDS / 2
        rail = scene.random.choice(RAILS)
        worker = yield from scene.worker(rail)
        worker.pause()
        scene.held.add(worker)
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(scene.stack.database_url, autocommit=True) as connection,
        ):
            batches = [row[0] for row in connection.execute(_IN_FLIGHT, [rail])]
            yield 2 * _SLOW_SECONDS
            if stuck := [row[0] for row in connection.execute(_STILL_IN_FLIGHT, [batches])]:
                return worker, stuck
        worker.resume()
        scene.held.discard(worker)


def _until_taken_over(scene: Scene, batches: Sequence[str]) -> Generator[float, None, None]:
    """Of these batches one is another worker's. That takes long while the provider is out of use."""
    waited = 0.0
    while waited < _TAKE_OVER_SECONDS:
        with suppress(psycopg.OperationalError), psycopg.connect(scene.stack.database_url) as connection:
            ((taken,),) = connection.execute(_TAKEN_OVER, [[f"batch:{batch}" for batch in batches]])
            if taken:
                return
        yield _AGAIN_SECONDS
        waited += _AGAIN_SECONDS


def _frozen_in(within: Within) -> Callable[[Scene, float], Act]:
    """A worker of the rail of login codes stops in the midst of a transaction, as one does whose host vanishes. All other codes
    must go on at once; what it had in hand is free when the server has ended its transaction."""

    def act(scene: Scene, seconds: float) -> Act:
        found = yield from _freeze_in(scene, within)
        if found is None:
            return "nobody was in such a transaction"
        worker, at = found
        try:
            yield seconds
        finally:
            worker.resume()
            scene.held.discard(worker)
        with suppress(psycopg.OperationalError), psycopg.connect(scene.stack.database_url) as connection:
            ((codes, slowest),) = connection.execute(_CODES_SINCE, [at, at, seconds])
            return f"{worker.name}; {codes} codes meanwhile, the slowest after {slowest:.1f} s"
        return worker.name

    return act


#: Login codes that were submitted while a worker was frozen: it cannot have had them in hand.
_CODES_SINCE = """
SELECT count(*), coalesce(max(extract(epoch FROM coalesce(accepted_at, clock_timestamp()) - created_at)), 0)::float8
FROM messaging_sends WHERE priority = 0 AND created_at > %s AND created_at < %s + %s * interval '1 second'
"""


def _freeze_in(scene: Scene, within: Within) -> Generator[float, None, tuple[Process, Any] | None]:
    """A worker, stopped within such a transaction, while another one of its rail runs; and when that was, by the database.
    None: for half a minute there was none."""
    end = time.monotonic() + _LOOKING_SECONDS
    while time.monotonic() < end:
        if scene.held.intersection(scene.stack.workers(CODES_RAIL)):
            # Nobody may be frozen now, and the obstacle itself would make codes wait that another fault is measured by.
            yield _AGAIN_SECONDS
            continue
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(scene.stack.database_url) as connection,
        ):
            if not within.obstruct(connection, CODES_RAIL):
                yield _NAP_SECONDS
                continue
            found, waited = None, 0.0
            while found is None and waited < _OBSTRUCTED_SECONDS:
                yield _NAP_SECONDS / 5
                waited += _NAP_SECONDS
                found = blocked(connection, within)
            worker = _free_one_of_two(scene, connection, found.process) if found else None
            if found and worker:
                worker.pause()
                scene.held.add(worker)
                connection.rollback()
                if stands_still(connection, found.backend):
                    ((at,),) = connection.execute("SELECT clock_timestamp()")
                    return worker, at
                worker.resume()
                scene.held.discard(worker)
        yield _AGAIN_SECONDS
    return None


#: How many of these workers do something (one that works asks the database all the time), and whether codes flow.
_ALIVE = """
SELECT count(DISTINCT application_name), NOT EXISTS (
    SELECT FROM messaging_sends
    WHERE priority = 0 AND status = 'queued' AND created_at < clock_timestamp() - interval '1 s'
)
FROM pg_stat_activity
WHERE application_name = ANY (%s::text[]) AND state_change > clock_timestamp() - interval '2 s'
"""


def _free_one_of_two(scene: Scene, connection: psycopg.Connection[Any], name: str) -> Process | None:
    """The worker of that name, if no fault has it or the other one of its rail, both work, and nothing keeps codes waiting."""
    workers = scene.stack.workers(CODES_RAIL)
    ((alive, flowing),) = connection.execute(_ALIVE, [[worker.name for worker in workers]])
    if alive < len(workers) or not flowing or scene.held.intersection(workers):
        return None
    return next((worker for worker in workers if worker.name == name), None)


ACTS: Mapping[str, Callable[[Scene, float], Act]] = {
    "worker-killed": worker_killed,
    "worker-stopped": worker_stopped,
    "clock-killed": lambda scene, seconds: _killed(scene, scene.stack.clock, seconds),
    "web-killed": lambda scene, seconds: _killed(scene, scene.stack.web, seconds),
    "redis-emptied": lambda scene, seconds: scene.server("redis", "kill", seconds, "start"),
    "postgres-crashed": lambda scene, seconds: scene.server("postgres", "kill", seconds, "start"),
    "postgres-restarted": lambda scene, seconds: scene.server("postgres", "restart"),
    "provider-500": _provider("500"),
    "provider-500-taken": _provider("500", accept=True),
    "provider-hangs": _provider("hang"),
    "provider-hangs-taken": _provider("hang", accept=True),
    "answers-cut": _provider("cut_body"),
    "dropped-after": _provider("drop_after_accept"),
    "reset-after": _provider("drop_after_accept", reset=True),
    "dropped-before": _provider("drop_before"),
    "429": _provider("429", retry_after=2),
    "429-bare": _provider("429", retry_after=None),
    "401": _provider("401", share=1.0),
    "outage": outage,
    "tickets-doubled": tickets_doubled,
    "tickets-deleted": tickets_deleted,
    "two-clocks": two_clocks,
    "snapshot": snapshot,
    "worker-frozen": worker_frozen,
    "frozen-in-record": _frozen_in(RECORD),
    "frozen-in-claim": _frozen_in(CLAIM),
}
assert ACTS.keys() == KINDS.keys()
