"""What is nobody's bug: the database or Redis is away, restarted, or chose this transaction to give way."""

from __future__ import annotations

import redis
from django.db import InterfaceError, InternalError, OperationalError
from psycopg.errors import IdleInTransactionSessionTimeout


def passes(error: BaseException) -> bool:
    """Whether the same work may go well a moment later, with nothing changed."""
    if isinstance(error, InternalError):
        # The server ended a transaction that stood still for too long (`core.jobs`).
        return isinstance(error.__cause__, IdleInTransactionSessionTimeout)
    return isinstance(error, OperationalError | InterfaceError | redis.ConnectionError | redis.TimeoutError)
