"""The system that is measured: one stack of real processes, emptied and set anew for each section.

Started again only where a section wants other numbers of workers or threads; else its database, Redis, provider and limits
are changed under the running processes.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import redis

from devtools.bench.remote import Remote
from devtools.stack import RAILS, Stack

#: Rows that belong to the system and not to a run.
_KEPT = ("messaging_blast_fold",)
_EMPTY_TRIES = 10
_SETTLE_SECONDS = 30.0
#: Above what workers believe of a limit (`messaging.ledger.buckets.TTL`).
_LIMITS_SECONDS = 2.2
UNLIMITED = 1_000_000.0
_LIMITS = """
INSERT INTO messaging_rate_limit_buckets (provider, scope, unit, capacity, refill_per_second, reserve, updated_at)
VALUES ('resend', 'global', 'request', %s, %s, 0, now())
"""


class BenchFailed(RuntimeError):
    """The run is no measurement: something was lost, doubled, or did not happen in time."""


class Lab:
    """`prepare` before anything else. `stack`, `sql` and `inside` are of what was prepared last."""

    stack: Stack
    inside: Remote

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._key: tuple[int, int, int] | None = None
        self._limits: tuple[float, float] | None = None
        self._believed_at = 0.0  # monotonic: from then on no worker believes the limits before
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self._exit.close()

    def prepare(
        self,
        *,
        rate: int,
        latency_ms: int = 50,
        window: str = "fixed",
        limit: tuple[float, float] | None = None,
        marketing: int = 1,
        transactional: int = 1,
        threads: int = 8,
    ) -> None:
        """A provider of `rate` requests/s (0: unlimited), its bucket (`limit`: capacity and refill; left out: the rule for
        that rate), worker processes of each rail. No tenant, no send, Redis empty."""
        key = (marketing, transactional, threads)
        flags = ["--rate", str(rate), "--latency-ms", str(latency_ms), "--window", window]
        fresh = self._key != key
        if fresh:
            self._start(key, flags)
        else:
            self._restart_sandbox(flags)
        capacity, refill = limit or ((1 + 0.02 * rate, 0.98 * rate) if rate else (UNLIMITED, UNLIMITED))
        self._empty((capacity, refill))
        if not fresh and self._limits != (capacity, refill):
            self._believed_at = time.monotonic() + _LIMITS_SECONDS
        self._limits = (capacity, refill)
        with redis.Redis.from_url(self.stack.redis_url) as client:
            client.flushdb()
        self.inside.call("forget")

    def sql(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run it; rows, if it has any."""
        cursor = self._connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def hold(self) -> None:
        """Stop all workers where they are (SIGSTOP), so that nothing is sent while a section sets up or measures alone."""
        for rail in RAILS:
            for process in self.stack.workers(rail):
                process.pause()

    def release(self) -> None:
        for rail in RAILS:
            for process in self.stack.workers(rail):
                process.resume()

    def discard(self) -> None:
        """What is still waiting is not sent any more: else the next section's provider would get some of it."""
        self.sql("UPDATE messaging_blasts SET state = 'cancelled' WHERE state IN ('planning', 'running')")
        self.sql("DELETE FROM messaging_blast_hints")

    def ready(self) -> None:
        """Call it when all is set up, before anything is sent: workers have learned the new limits, and statistics are as
        autovacuum would have them, now and not in the middle of the run."""
        time.sleep(max(0.0, self._believed_at - time.monotonic()))
        self.sql("ANALYZE messaging_sends, messaging_blasts, messaging_batches, core_processed_jobs, core_tenants")

    def wait_sent(self, emails: int, seconds: float) -> None:
        """Return when the provider has accepted so many and all answers are recorded. Raises BenchFailed."""
        deadline = time.monotonic() + seconds
        while True:
            self.stack.check()
            with suppress(TimeoutError):
                self.stack.sandbox.wait(emails=emails, timeout=1.0)
                break
            if time.monotonic() > deadline:
                stats = self.stack.sandbox.stats()
                raise BenchFailed(
                    f"{stats['emails_accepted']:,} of {emails:,} e-mails were sent after {seconds:.0f} s."
                )
        self.wait_recorded()

    def wait_recorded(self) -> None:
        """Return when no request is in flight any more."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while self.sql("SELECT 1 FROM messaging_batches WHERE state IN ('claimed', 'preparing', 'unknown') LIMIT 1"):
            if time.monotonic() > deadline:
                raise BenchFailed(f"Batches are still open {_SETTLE_SECONDS:.0f} s after the last request.")
            time.sleep(0.02)

    def audit(self, sent: int) -> None:
        """Nothing lost, nothing doubled: the provider's account against the ledger's. Raises BenchFailed."""
        stats = self.stack.sandbox.stats()
        ledger = self.sql("SELECT count(*) FROM messaging_sends WHERE status = 'sent'")[0][0]
        if not stats["doubles"] == stats["untagged"] == 0 or not stats["emails_accepted"] == ledger == sent:
            raise BenchFailed(
                f"Expected {sent:,} e-mails; the provider has {stats['emails_accepted']:,} ({stats['doubles']} doubled), the"
                f" ledger says {ledger:,} were sent."
            )

    def _start(self, key: tuple[int, int, int], flags: list[str]) -> None:
        self._exit.close()
        self._key = None
        marketing, transactional, threads = key
        with ExitStack() as undo:
            self.stack = undo.enter_context(
                Stack(
                    data_dir=self._data_dir,
                    sandbox_flags=flags,
                    workers={"marketing": marketing, "transactional": transactional},
                    threads=threads,
                )
            )
            self._connection = undo.enter_context(psycopg.connect(self.stack.database_url, autocommit=True))
            self.inside = undo.enter_context(Remote(self.stack.env, self._data_dir / "logs" / "inside.log"))
            self._exit = undo.pop_all()
        self._key = key

    def _restart_sandbox(self, flags: list[str]) -> None:
        process = self.stack.sandbox.process
        process.terminate()
        process.command[process.command.index("--port") + 2 :] = flags
        process.start()
        process.wait_ready()

    def _empty(self, limits: tuple[float, ...]) -> None:
        """All rows gone and the limits there again in one step: a worker never sees a provider without a bucket."""
        tables = [
            name
            for (name,) in self.sql(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename ~ '^(core|messaging)_'"
            )
            if name not in _KEPT
        ]
        for attempt in range(_EMPTY_TRIES):
            try:
                with self._connection.transaction():
                    self.sql("SET LOCAL lock_timeout = '2s'")
                    self.sql(f"TRUNCATE {', '.join(tables)} CASCADE")
                    self.sql(_LIMITS, *limits)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):  # the clock and workers go on
                if attempt == _EMPTY_TRIES - 1:
                    raise
            else:
                return
