"""Of all processes whose leaders wait for the same token, one looks when it is there; the others wait behind it.

Each of n leaders would look at the moment of the token, and n − 1 would learn that it is gone: n times the queries for the same
requests. So who waits leaves a mark in Redis, which ends a moment after its token; who finds another's waits until that ends,
without a look. Nothing depends on the one in front: if it dies, the next looks as soon as its mark has ended. A look sees all
that is due, whoever's ticket told of it, so nobody behind knows of work that the one in front does not find.

Short waits are left alone: where tokens come quickly, one process cannot take them all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from uuid import uuid4

import redis

from core.telemetry.redis_client import quick_client

log = logging.getLogger(__name__)

#: Seconds of a wait from which on one waits for all; and for which a mark outlives its token. Below the time between two tokens
#: wherever a wait can be that long: else who is behind would come too late for the next one.
SHORTEST, SLACK = 0.02, 0.02
#: Seconds by which two waits for the same token may differ.
_SAME = 0.01
_FOR_EVER = 10**9
#: KEYS[1] the mark. ARGV[1] who, ARGV[2] ms, ARGV[3] ms beyond which another's mark is taken over: who has just looked knows that
#: the token is there earlier. Answer: −1, it is ours now; else ms until another's ends.
_MARK = """
local owner = redis.call('get', KEYS[1])
if owner and owner ~= ARGV[1] then
    local left = redis.call('pttl', KEYS[1])
    if left <= tonumber(ARGV[3]) then
        return math.max(0, left)
    end
end
redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])
return -1
"""


def _new_name() -> None:
    global _me
    _me = uuid4().hex


_me = ""
_new_name()
os.register_at_fork(after_in_child=_new_name)


def wait(
    place: tuple[str, str, str],
    seconds: float,
    *,
    sleep: Callable[[float], None],
    go_on: Callable[[], bool],
    me: str = "",
) -> None:
    """Wait for a token that is there in `seconds`, in front of the other processes or behind one of them; then look.

    `place`: provider, channel, rail. Ends early if `go_on` says no. With Redis away everybody waits for himself.
    """
    if seconds < SHORTEST:
        sleep(seconds)
        return
    key = "notif:waits:" + ":".join(place)
    try:
        script = quick_client().register_script(_MARK)
        behind = script(keys=[key], args=[me or _me, _ms(seconds + SLACK), _ms(seconds + SLACK + _SAME)])
        if behind >= 0:
            while behind >= 0 and go_on():
                sleep((behind + 1) / 1000)
                behind = script(keys=[key], args=[me or _me, _ms(SLACK), _FOR_EVER])
            return
    except redis.RedisError as error:
        log.warning("waits_alone", extra={"error": type(error).__name__})
    sleep(seconds)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
