"""What a session of PostgreSQL must be set to, however the connection was made.

The settings travel as startup options. A pooler may drop those (PgBouncer's `ignore_startup_parameters`), and then it would
be the database's defaults that decide whether a commit is durable and how long a vanished host keeps its locks. So each new
connection reads back what it got (`core.db.postgres`), and one that got something else is refused with what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Seconds until the server ends a transaction that stands still: its worker is frozen, or its host has vanished. What dispatch
#: and clock do takes milliseconds. A job whose transaction works for longer says so (`core.jobs`).
IDLE_IN_TRANSACTION = 5
#: Seconds that a statement waits for a lock. Above PostgreSQL's `deadlock_timeout` (1 s), so that a deadlock is told as such.
LOCK_WAIT = 2
#: Where others wait for the one that waits.
BRIEF_WAIT = 0.2
#: What an operator may set instead, on a role behind a pooler.
_LONGEST_IDLE, _LONGEST_WAIT = 10, 5

#: What must be so.
NEEDED = {
    # The ledger's statements are prepared and written so that one plan serves all values; planning them anew each time
    # would cost more than running them (docs/decisions/0001).
    "plan_cache_mode": "force_generic_plan",
    # Commits are durable whatever the database's default says.
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION}s",
    "lock_timeout": f"{LOCK_WAIT}s",
}
#: The server's end of the connection: a client that died without a word is noticed within half a minute there, too. Not read
#: back: on a unix socket there is nothing of it, and behind a pooler it is about the pooler's own connections.
_KEEPALIVES = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "25000",  # ms
}

STARTUP = " ".join(f"-c {name}={value}" for name, value in (NEEDED | _KEEPALIVES).items())
READ_BACK = """
SELECT current_setting('plan_cache_mode'), current_setting('synchronous_commit'),
       extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)::float8,
       extract(epoch FROM current_setting('lock_timeout')::interval)::float8
"""
HINT = (
    "Does a pooler drop startup options? Give them to the role that the application connects as, then let the pooler make new"
    " connections: "
    + " ".join(f"ALTER ROLE … SET {name} = '{value}';" for name, value in NEEDED.items())
    + " (docs/operations.md)"
)


def wrong(found: Sequence[Any]) -> list[str]:
    """The settings, of a row of `READ_BACK`, that are not as they must be, each with what it is."""
    plans, commits, idle, wait = found
    problems = []
    if plans != NEEDED["plan_cache_mode"]:
        problems.append(f"plan_cache_mode is {plans}")
    if commits not in ("on", "remote_apply"):
        problems.append(f"synchronous_commit is {commits}")
    if not 0 < idle <= _LONGEST_IDLE:
        problems.append(f"idle_in_transaction_session_timeout is {idle:g} s, not above 0 and at most {_LONGEST_IDLE} s")
    if not 0 < wait <= _LONGEST_WAIT:
        problems.append(f"lock_timeout is {wait:g} s, not above 0 and at most {_LONGEST_WAIT} s")
    return problems
