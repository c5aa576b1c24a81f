"""What is nobody's bug: the database or Redis is away, restarted, takes no writes for now, or chose this transaction to give
way."""

from __future__ import annotations

import re
import traceback
from pathlib import PurePath

import redis
from django.db import InterfaceError, InternalError, OperationalError

#: What PostgreSQL's class 25 (a transaction in a state that forbids the statement: usually a bug) has to do with the server and
#: not with the statement: it takes no writes (it was a primary, and is a standby now); it ended a transaction that stood still,
#: or lasted, for too long.
_OF_THE_SERVER = ("25006", "25P03", "25P04")

#: Redis is away. redis-py's TimeoutError is no ConnectionError.
AWAY = (redis.ConnectionError, redis.TimeoutError)
#: Redis is there and cannot be written to for now: memory or disk full, a replica, too few of them, a long script.
_NOT_NOW = (redis.exceptions.OutOfMemoryError, redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError)
#: The same, as text: redis-py has no class for some, and what is refused within a script comes as a plain error.
_NOT_NOW_WORDS = re.compile(r"\b(OOM|MISCONF|READONLY|NOREPLICAS|MASTERDOWN|BUSY)\b")
#: Parts of a path that are told: the package is in it, the machine is not.
_PATH_PARTS = 4


def place_of(error: BaseException) -> str:
    """Where it was raised, for a log: the file and line. Not the error's text, which may quote what belongs to a person."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{short_path(frames[-1].filename)}:{frames[-1].lineno}" if frames else "an unknown place"


def short_path(filename: str) -> str:
    return "/".join(PurePath(filename).parts[-_PATH_PARTS:])


def is_transient(error: BaseException) -> bool:
    """Whether the same work may go well a moment later, with nothing changed. A lock that was waited for in vain (55P03) is an
    OperationalError, too."""
    if isinstance(error, InternalError):
        return getattr(error.__cause__, "sqlstate", None) in _OF_THE_SERVER
    if isinstance(error, redis.RedisError):
        return isinstance(error, AWAY + _NOT_NOW) or bool(_NOT_NOW_WORDS.search(str(error)))
    return isinstance(error, OperationalError | InterfaceError)
