"""Work that takes effect once, however often it is asked for: leased, fenced, done in the transaction of its result.

A job has a key that comes from the work (`import:42:chunk:7`), never from a broker message: the same work under two
messages is one job. One row of `core_processed_jobs` says whose it is and whether it is done.

    with hold("import:42", lease=30) as held:    # JobDone, JobRunning: somebody else did it, or is at it
        rows = fetch()                           # no transaction is open here
        with held.result():                      # one transaction: the result, and that it is done
            store(rows)                          # FencedOut: not ours any more; nothing is stored

For an actor (or a plain function) whose whole work is its result, one decorator:

    @job(key=lambda upload, chunk: f"import:{upload}:chunk:{chunk}")
    @dramatiq.actor
    def import_chunk(upload: int, chunk: int) -> None: ...

What follows from a duplicate: of a job that is done, it is skipped; of one that is running, it waits its turn, in place for
`PATIENCE` seconds and then as a message of its own at the end of the queue; of one whose worker vanished, it takes over
when the lease has run out, under a higher fence. Whoever is fenced out cannot commit.

A batch is a job, too (`messaging.ledger`): it is extended and taken over here. Only what every batch passes, claim and end,
writes its row by statements of the ledger's own, together with the batch: two round trips less on the path of every send.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, overload

import dramatiq
from django.db import transaction

from core.broker import queues
from core.db.cursor import ledger_cursor
from core.db.faults import is_transient

log = logging.getLogger(__name__)

#: Seconds for which a job belongs to whoever took it, unless told otherwise.
LEASE = 30.0
#: Seconds that a duplicate of a running job waits in its thread before it goes to the end of the queue.
PATIENCE = 5.0
#: Seconds between two looks at a running job: at first, and at most.
_FIRST_LOOK, _LAST_LOOK = 0.05, 1.0
_LONGEST_KEY = 200


class JobDone(Exception):
    """The work has taken effect already. Nothing is left to do."""


class JobRunning(Exception):
    """Somebody else is at it, or its worker has vanished and the lease still lasts. It may have to be done later."""


class FencedOut(Exception):
    """The lease ran out and another worker took the job over. Nothing of this result was stored."""


# An open job whose lease has run out is taken over; any other one is left as it is, and no row comes back. Nor for one whose row
# is locked: somebody writes its result or takes it over at this moment, or did so when his host vanished. Nobody waits for him.
# (Two that begin the same new job at once do wait for each other: for a statement, and at most for `core.db.session.LOCK_WAIT`.)
_BEGIN = """
WITH lapsed AS MATERIALIZED (
    SELECT job_key FROM core_processed_jobs
    WHERE job_key = %(key)s AND done_at IS NULL AND lease_until <= clock_timestamp() FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE core_processed_jobs j
    SET fence = j.fence + 1, lease_until = clock_timestamp() + %(lease)s * interval '1 second'
    WHERE j.job_key = ANY (ARRAY (SELECT job_key FROM lapsed))
    RETURNING j.fence
), begun AS (
    INSERT INTO core_processed_jobs (job_key, fence, lease_until, created_at)
    SELECT %(key)s, 1, clock_timestamp() + %(lease)s * interval '1 second', clock_timestamp()
    WHERE NOT EXISTS (SELECT FROM core_processed_jobs WHERE job_key = %(key)s)
    ON CONFLICT (job_key) DO NOTHING
    RETURNING fence
)
SELECT fence FROM taken UNION ALL SELECT fence FROM begun
"""
_IS_DONE = "SELECT done_at IS NOT NULL FROM core_processed_jobs WHERE job_key = %(key)s"
_FINISH = """
UPDATE core_processed_jobs SET done_at = clock_timestamp()
WHERE job_key = %(key)s AND fence = %(fence)s AND done_at IS NULL
"""
_EXTEND = """
UPDATE core_processed_jobs SET lease_until = clock_timestamp() + %(seconds)s * interval '1 second'
WHERE job_key = %(key)s AND fence = %(fence)s AND done_at IS NULL
"""


def begin(key: str, lease: float) -> int | None:
    """Take a job that is new, or whose lease has run out, for `lease` seconds. Returns the fence; None: it is done, or running.

    Commit before the work begins: until then nobody else knows.
    """
    with ledger_cursor() as sql:
        row = sql.one(_BEGIN, {"key": key, "lease": lease})
    return row[0] if row else None


def finish(key: str, fence: int) -> bool:
    """Done, in the transaction that writes the result. False: the fence is not ours any more."""
    with ledger_cursor() as sql:
        return sql.run(_FINISH, {"key": key, "fence": fence}) == 1


def extend(key: str, fence: int, seconds: float) -> bool:
    """The lease ends `seconds` from now (0: anybody may take the job). False: it is not ours any more, or done."""
    with ledger_cursor() as sql:
        return sql.run(_EXTEND, {"key": key, "fence": fence, "seconds": seconds}) == 1


@dataclass(frozen=True, slots=True)
class Held:
    """A job that is ours until the lease runs out, or `extend` has moved its end."""

    key: str
    fence: int
    lease: float

    @contextmanager
    def result(self) -> Iterator[None]:
        """One transaction for the result; with it the job is done. Raises FencedOut at its end, and then nothing is stored.

        The server ends it if it stands still for longer than the lease: a frozen worker must not keep whoever takes the job
        over waiting for its locks.
        """
        with transaction.atomic():
            with ledger_cursor() as sql:
                sql.one(
                    "SELECT set_config('idle_in_transaction_session_timeout', %(ms)s, true)",
                    {"ms": str(int(self.lease * 1000))},
                )
            yield
            if not finish(self.key, self.fence):
                raise FencedOut(self.key)

    def extend(self, seconds: float) -> None:
        """The lease ends `seconds` from now. Raises FencedOut."""
        if not extend(self.key, self.fence, seconds):
            raise FencedOut(self.key)


@contextmanager
def hold(key: str, *, lease: float = LEASE) -> Iterator[Held]:
    """The job, taken and committed. Raises JobDone or JobRunning instead.

    If the block ends without a result, or raises, the job is free again at once; if the process dies, when the lease ends.
    """
    if not 0 < len(key) <= _LONGEST_KEY:
        raise ValueError(f"A job key has 1 to {_LONGEST_KEY} characters.")
    fence = begin(key, lease)
    if fence is None:
        with ledger_cursor() as sql:
            row = sql.one(_IS_DONE, {"key": key})
        raise JobDone(key) if row and row[0] else JobRunning(key)
    try:
        yield Held(key, fence, lease)
    finally:
        _free(key, fence)


def _free(key: str, fence: int) -> None:
    try:
        extend(key, fence, 0)  # nothing to do for one that is done
    except Exception as error:
        if not is_transient(error):
            raise
        log.warning("job_not_freed", extra={"error": type(error).__name__})


P = ParamSpec("P")
R = TypeVar("R")


class _Job:
    """See `job`."""

    def __init__(self, key: Callable[..., str], lease: float) -> None:
        self._key, self._lease = key, lease

    @overload
    def __call__(self, work: dramatiq.Actor[P, R]) -> dramatiq.Actor[P, R]: ...
    @overload
    def __call__(self, work: Callable[P, R]) -> Callable[P, R | None]: ...
    def __call__(self, work: Any) -> Any:
        if not isinstance(work, dramatiq.Actor):
            return self._once(work, None)
        work.fn = self._once(work.fn, partial(queues.enqueue, work.queue_name, work.actor_name))
        return work

    def _once(self, work: Callable[..., Any], hand_on: Callable[..., bool] | None) -> Callable[..., Any]:
        @wraps(work)
        def run(*args: Any, **kwargs: Any) -> Any:
            key = self._key(*args, **kwargs)
            again = partial(hand_on, *args, **kwargs) if hand_on else None
            return _in_turn(key, self._lease, partial(work, *args, **kwargs), again)

        return run


def job(*, key: Callable[..., str], lease: float = LEASE) -> _Job:
    """The decorated function takes effect once for each key, in one transaction, the result of which it is.

    `key` is called with the arguments; begin it with a word of your own. `lease` (seconds) must be longer than the work.
    Over an actor: a call may be answered later, by a message of its own. Over a plain function: it returns None if the
    work was done before, and raises JobRunning if it is still running after `PATIENCE`.
    """
    return _Job(key, lease)


def _in_turn(key: str, lease: float, work: Callable[[], R], hand_on: Callable[[], bool] | None) -> R | None:
    """Do the work once it is our turn. With the database away it is not; what has no other place to wait waits here."""
    patience, pause = time.monotonic() + PATIENCE, _FIRST_LOOK
    while True:
        try:
            with hold(key, lease=lease) as held, held.result():
                return work()
        except JobDone:
            return None
        except FencedOut:
            log.warning("job_fenced_out", extra={"lease": lease})
        except Exception as error:
            if not (isinstance(error, JobRunning) or is_transient(error)):
                raise
            if time.monotonic() > patience:
                if hand_on is None:
                    raise
                # Not before the next message is there: it is acknowledged when this returns.
                if hand_on():
                    return None
        time.sleep(pause)
        pause = min(_LAST_LOOK, 2 * pause)
