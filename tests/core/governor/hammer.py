"""One of many processes that ask the real governor as often as they can.

`python -m tests.core.governor.hammer REDIS_URL PROVIDER RAIL SECONDS` reports ready in the list `ready`, starts with an
element of the list `go`, and prints what it was told as a JSON list of `[µs of Redis' clock, granted, µs to wait]`.
Refusals are listed if they are for a missing global token and on the transactional rail.
"""

import json
import sys
import time
from typing import Any

import redis

from core.governor.client import Bucket, Governor, Limits, Want
from core.security.ids import new_id

#: The capacity is a second's worth, and the level starts at one token: the processes would have to stall for a whole
#: second before anything is lost to a full bucket, so that the tokens can be counted exactly.
HAMMERED = Limits(Bucket(capacity=200, refill=200))
WANT = Want(tenant=1, priority=0, sends=100, bucket=Bucket(1_000_000, 1_000_000))


class Recorder(Governor):
    reply: list[Any]

    def _call(self, operation: str, **arguments: Any) -> list[Any]:
        self.reply = super()._call(operation, **arguments)
        return self.reply


def main(url: str, provider: str, rail: str, seconds: float) -> None:
    told = []
    with redis.Redis.from_url(url) as client:
        governor = Recorder(client, provider)
        client.rpush("ready", rail)
        assert client.blpop(["go"], timeout=30), "never started"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            grant = str(new_id())
            decision = governor.acquire(
                grant=grant, batch=grant, rail=rail, limits=HAMMERED, max_batch=100, wants=[WANT]
            )
            if decision.granted or (rail == "transactional" and decision.reason == "global"):
                told.append([governor.reply[1], decision.granted, governor.reply[2]])
            if rail == "transactional":  # now and then, not all the time: the rest is for marketing
                time.sleep(0.02 if decision.granted else decision.wait)
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
