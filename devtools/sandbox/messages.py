"""A request as it was read, and an answer as it will be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

Headers = tuple[tuple[str, str], ...]


class Ending(Enum):
    """How an answer ends on the wire."""

    WHOLE = "whole"
    CUT = "cut"  # the head promises the whole body, half of it follows, then the connection closes
    DROPPED = "dropped"  # the connection closes (FIN) without a byte
    RESET = "reset"  # the connection is reset (RST) without a byte
    HUNG = "hung"  # nothing, until the client leaves


@dataclass(slots=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass(slots=True)
class Answer:
    """`delay` is in seconds. `done` is called once when the answer leaves, or when its client has left."""

    status: int
    body: bytes = b""
    headers: Headers = ()
    content_type: str = "application/json"
    delay: float = 0.0
    ending: Ending = Ending.WHOLE
    stream: Iterator[bytes] | None = None  # written in chunks in place of `body`
    done: Callable[[], None] | None = None

    @property
    def outcome(self) -> str:
        """What a count by status calls it: the status, or what happened in its place."""
        return str(self.status) if self.ending is Ending.WHOLE else self.ending.value


def json_answer(status: int, value: Any, headers: Headers = ()) -> Answer:
    return Answer(status, orjson.dumps(value), headers)
