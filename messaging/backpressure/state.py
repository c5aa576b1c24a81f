"""What the marketing workers of a channel do at this moment, told by each of them through Redis.

One hash a channel, one field a process, `expires at:JSON`. A process renews its field; one that vanished is not believed
after `TTL` seconds, and its field is removed by whoever tells something next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import redis

from messaging.domain.rails import Channel

#: Seconds for which what a process told is believed.
TTL = 15

_PUBLISH = """
local now = tonumber(redis.call('TIME')[1])
local told = redis.call('HGETALL', KEYS[1])
for i = 1, #told, 2 do
  if tonumber(string.match(told[i + 1], '^%d+')) < now then redis.call('HDEL', KEYS[1], told[i]) end
end
redis.call('HSET', KEYS[1], ARGV[1], (now + tonumber(ARGV[2])) .. ':' .. ARGV[3])
"""


@dataclass(frozen=True, slots=True)
class ProcessYield:
    """One worker process. `depth` is counted up to `high`; `high` and `low` are 0 where nothing counts (`why` says so).

    `why`: "depth" (the high mark was reached), "unreadable" (it could not be counted), "starting", or for one that does
    not yield "" or why a backlog would not count: "circuit", "no_bucket".
    """

    process: str
    yielding: bool
    since: float  # Unix time of the last change
    why: str
    depth: int
    high: int
    low: int


@dataclass(frozen=True, slots=True)
class YieldState:
    """A channel: it is yielding if any of its processes is, since the first of them, for that one's reason."""

    channel: Channel
    yielding: bool
    since: float | None
    why: str
    depth: int
    high: int
    low: int
    processes: tuple[ProcessYield, ...]


def key_of(channel: Channel) -> str:
    return f"notif:yield:{channel}"


def publish(client: redis.Redis, channel: Channel, told: ProcessYield) -> None:
    """Raises redis.RedisError."""
    client.eval(_PUBLISH, 1, key_of(channel), told.process, TTL, json.dumps(asdict(told)))


def withdraw(client: redis.Redis, channel: Channel, process: str) -> None:
    """A process has ended. Raises redis.RedisError."""
    client.hdel(key_of(channel), process)


def yield_state(channel: Channel, client: redis.Redis) -> YieldState:
    """All processes, merged. Without any (no worker runs) nothing yields. Raises redis.RedisError."""
    pipe = client.pipeline(transaction=False)
    pipe.time()
    pipe.hgetall(key_of(channel))
    (now, _), fields = pipe.execute()
    return merge(channel, _believed(cast("dict[bytes, bytes]", fields), now))


def _believed(fields: dict[bytes, bytes], now: int) -> list[ProcessYield]:
    told = []
    for value in fields.values():
        expires, _, text = value.partition(b":")
        if int(expires) >= now:
            values: dict[str, Any] = json.loads(text)
            told.append(ProcessYield(**values))
    return sorted(told, key=lambda process: process.process)


def merge(channel: Channel, processes: Sequence[ProcessYield]) -> YieldState:
    yielding = [process for process in processes if process.yielding]
    first = min(yielding or processes, key=lambda process: process.since, default=None)
    return YieldState(
        channel=channel,
        yielding=bool(yielding),
        since=first.since if first else None,
        why=first.why if first else "",
        depth=max((process.depth for process in processes), default=0),
        high=first.high if first else 0,
        low=first.low if first else 0,
        processes=tuple(processes),
    )
