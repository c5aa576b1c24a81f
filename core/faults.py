"""What is nobody's bug: the database or Redis is away, restarted, takes no writes for now, or chose this transaction to give
way."""

from __future__ import annotations

import redis
from django.db import InterfaceError, InternalError, OperationalError

#: What PostgreSQL's class 25 (a transaction in a state that forbids the statement: usually a bug) has to do with the server and
#: not with the statement: it takes no writes (it was a primary, and is a standby now); it ended a transaction that stood still,
#: or lasted, for too long.
_OF_THE_SERVER = ("25006", "25P03", "25P04")


def passes(error: BaseException) -> bool:
    """Whether the same work may go well a moment later, with nothing changed. A lock that was waited for in vain (55P03) is an
    OperationalError, too."""
    if isinstance(error, InternalError):
        return getattr(error.__cause__, "sqlstate", None) in _OF_THE_SERVER
    return isinstance(error, OperationalError | InterfaceError | redis.ConnectionError | redis.TimeoutError)
