"""Stopping a process exactly while its transaction is open, from outside: an obstacle is put where its next statement must wait,
the process is stopped there (SIGSTOP), and the obstacle taken away. Its session then stands idle in the transaction, with all the
locks it has, as that of a host which has vanished.

    with psycopg.connect(url) as connection:
        if RECORD.obstruct(connection, "transactional"):
            found = blocked(connection, RECORD)      # again and again, until there is one
            process.pause()                          # the one that is called `found.process`
            connection.rollback()
            assert stands_still(connection, found.backend)
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

#: For the statement that was waited in to end, once the obstacle is gone.
_SETTLE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Within:
    """A kind of transaction. `obstacle`: a statement that locks what its statement `waits` (a pattern) needs, if there is
    something to be locked; its parameter is the rail."""

    name: str
    obstacle: str
    waits: str
    rail: bool

    def obstruct(self, connection: psycopg.Connection[Any], rail: str) -> bool:
        """Lock, in the transaction that this begins. False: there was nothing; it is over again."""
        cursor = connection.execute(self.obstacle.encode(), {"rail": rail} if self.rail else None)
        if self.rail and cursor.rowcount == 0:
            connection.rollback()
            return False
        return True


#: A send of a batch whose request is under way: its answer can be written on the batch, not on this one.
RECORD = Within(
    "record",
    """
    SELECT FROM messaging_sends WHERE status = 'sending' AND id = (
        SELECT send_ids[1] FROM messaging_batches WHERE rail = %(rail)s AND state = 'claimed' ORDER BY id DESC LIMIT 1
    ) FOR UPDATE SKIP LOCKED
    """,
    r"UPDATE messaging_sends\M",
    rail=True,
)
#: Sends are claimed before their batch is written.
CLAIM = Within(
    "claim",
    "SET LOCAL lock_timeout = '1s'; LOCK TABLE messaging_batches IN SHARE MODE",
    r"INSERT INTO messaging_batches\M",
    rail=False,
)


class Blocked(NamedTuple):
    backend: int  # the server's process
    process: str  # the name of ours (`Supervisor` gives it to the session)


_BLOCKED = """
SELECT pid, application_name FROM pg_stat_activity
WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)) AND query ~ %s AND application_name <> '' LIMIT 1
"""


def blocked(connection: psycopg.Connection[Any], within: Within) -> Blocked | None:
    """A session that waits for the obstacle of this one."""
    connection.execute("SELECT pg_stat_clear_snapshot()")
    row = connection.execute(_BLOCKED, [within.waits]).fetchone()
    return Blocked(*row) if row else None


def stands_still(connection: psycopg.Connection[Any], backend: int) -> bool:
    """The session is idle in a transaction: its process stopped before it could go on."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        row = connection.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [backend]).fetchone()
        connection.rollback()
        if row is None or row[0] != "active" or time.monotonic() > deadline:
            return row is not None and row[0] == "idle in transaction"
        time.sleep(0.005)
