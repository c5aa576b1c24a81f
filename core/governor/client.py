"""Client of the governor (`governor.lua`; specification: docs/governor.md).

`acquire` asks "may a batch leave now, and whose sends may be in it?", `settle` reports what became of a grant. Both are
one EVALSHA. Redis away raises `redis.RedisError`: without the governor nothing is sent.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import redis

_SCRIPT = Path(__file__).with_name("governor.lua").read_text()

#: Seconds that marketing stays back after the moment the waiting transactional batch can have its token: the time that
#: batch needs to wake up and ask (docs/decisions/0005 has the simulation).
MARK_SLACK = 0.025
#: Seconds that the next token comes later when the provider says that its window is used up: how much later than its grant
#: a request may reach the provider (measured: docs/decisions/0009).
HEADER_SLACK = 0.005
#: Seconds until a request in flight is forgotten if nobody settles it: the lease of a batch.
FLIGHT_TTL = 30.0
#: Seconds for which everybody waits for a probe of an open circuit. Its worker may have frozen or died, or the provider may hang
#: on this one connection: then it counts as a failed probe, and another one goes.
PERMIT_TTL = 3.0
#: Seconds for which they wait for the request of a probe to leave: claiming and preparing take milliseconds. A worker that froze
#: meanwhile has asked the provider nothing: the next probe goes at once, and none has failed.
CLAIM_TTL = 1.0
#: Seconds by which an open circuit's next probe is kept for the preferred kind of work.
PROBE_GRACE = 1.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tokens: how many it holds, how many come back each second, how many only the transactional rail may take.

    `rail`: of a tenant, the rail that it is for; "" is for both. Each has a level of its own.
    """

    capacity: float
    refill: float
    reserve: float = 0.0
    rail: str = ""

    def packed(self) -> list[float]:
        return [self.capacity, self.refill, self.reserve]

    def level_of(self, tenant: int) -> str:
        """The name of a tenant's level (docs/governor.md)."""
        return f"{tenant}:{self.rail}" if self.rail else str(tenant)


#: Of the request rate, what repetitions may take: a provider that fails every other request must not fill its limit with them.
RETRY_SHARE = 0.2
#: And of that, what is marketing's own whatever the transactional rail repeats.
TRICKLE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Limits:
    """A provider's global buckets: requests, and its quota in sends if it has one."""

    request: Bucket
    quota: Bucket | None = None

    @property
    def retries(self) -> Bucket:
        """Requests that repeat or search: one second's worth at once, then `RETRY_SHARE` of the rate. Half of it is kept from
        marketing: what becomes of a login code must not wait for a newsletter's repetitions."""
        capacity = max(2.0, self.request.refill)
        return Bucket(capacity, RETRY_SHARE * self.request.refill, capacity / 2)

    @property
    def trickle(self) -> Bucket:
        """Of `retries`, what marketing may take though nothing else is left for it: one at a time."""
        return Bucket(1, TRICKLE_SHARE * self.retries.refill)


@dataclass(frozen=True, slots=True)
class Want:
    tenant: int
    priority: int
    sends: int
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of `acquire`. Granted: `shares[i]` sends of `wants[i]` may leave in one request. Else: ask again in
    `wait` seconds, `reason` says why. `starved[i]`: seconds for which want i's tenant has nothing (0: it has)."""

    granted: bool
    wait: float
    reason: str
    epoch: int
    probe: bool
    shares: tuple[int, ...]
    starved: tuple[float, ...]
    cursors: dict[int, int]


class Event(StrEnum):
    """What a request told about the provider; the rules are in docs/governor.md."""

    ACCEPTED = "accepted"
    ANSWERED = "answered"  # of what only the owner of the key has: it is there, and takes the key
    REFUSED = "refused"  # it is there
    FORBIDDEN = "forbidden"  # by whom cannot be told: something in front of it may have said so
    RATE_LIMITED = "rate_limited"
    QUOTA = "quota"
    FAILED = "failed"
    CREDENTIAL = "credential"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request was refused with `code`, for one of `names` (or for all of them, or for none: that is what is counted).
    No two of them are the same; a code has no semicolon and a name neither that nor a comma."""

    code: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    circuit: str  # reason for which it is open now for the caller's rail, or ""
    opened: bool
    closed: bool
    blocked: float  # seconds
    refused_for: float  # closed, and meanwhile everybody was refused: seconds since the first of these; else 0


class Governor:
    """The governor of one provider. Cheap to make; safe to share between threads."""

    def __init__(self, client: redis.Redis, provider: str) -> None:
        prefix = f"{{gov:{provider}}}"
        self.keys = [f"{prefix}:state", f"{prefix}:tenants", f"{prefix}:flights"]
        self._client = client
        self._script = client.register_script(_SCRIPT)

    def acquire(
        self,
        *,
        grant: str,
        batch: str,
        rail: str,
        limits: Limits,
        max_batch: int,
        wants: Sequence[Want] = (),
        replay: bool = False,
        retry: bool = False,
        probe_batch: int | None = None,
    ) -> Decision:
        """One request token for `rail`, and with it sends of `wants` up to `max_batch`.

        `grant` is a new id for this call's grant; `batch` the batch it is for. With `replay`, a batch that was charged
        already goes out again: it takes a request token and no sends. Without it `wants` must not be empty.
        `retry`: it repeats, or searches, and takes from the retry budget too. `probe_batch`: `max_batch` of a probe.
        """
        assert replay or wants, "nothing wanted"
        reply = self._call(
            "acquire",
            grant=grant,
            batch=batch,
            rail=rail,
            kind="replay" if replay else "due",
            max_batch=max_batch,
            slack=MARK_SLACK,
            flight_ttl=FLIGHT_TTL,
            claim_ttl=CLAIM_TTL,
            grace=PROBE_GRACE,
            request=limits.request.packed(),
            quota=limits.quota.packed() if limits.quota else None,
            retry=limits.retries.packed() if retry else None,
            trickle=limits.trickle.packed(),
            probe_batch=max_batch if probe_batch is None else probe_batch,
            wants=[[w.tenant, w.priority, w.sends, *w.bucket.packed(), w.bucket.rail] for w in wants],
        )
        return Decision(
            granted=reply[0] == 1,
            wait=reply[2] / 1e6,
            reason=reply[3].decode(),
            epoch=reply[4],
            probe=reply[5] == 1,
            shares=tuple(reply[6]),
            starved=tuple(us / 1e6 for us in reply[7]),
            cursors=dict(reply[8]),
        )

    def leaves(self, grant: str) -> None:
        """The request of a probe is about to leave: others wait for its answer now. Only for one that is a probe."""
        self._call("leaves", grant=grant, permit_ttl=PERMIT_TTL)

    def late(self, seconds: float, limits: Limits) -> None:
        """The request of a grant leaves `seconds` later than usual: later ones are put off as much."""
        self._call("late", seconds=seconds, request=limits.request.packed())

    def settle(
        self,
        *,
        grant: str,
        batch: str,
        rail: str,
        event: Event,
        limits: Limits,
        epoch: int = -1,
        unused: bool = False,
        retry: bool = False,
        refused: Refusal | None = None,
        failed_for: Sequence[str] = (),
        back: Sequence[tuple[int, int, Bucket]] = (),
        retry_after: float | None = None,
        remaining: float | None = None,
    ) -> Settled:
        """Report `event` for a grant, and give back what was not used. Repeating it gives nothing back twice.

        `back`: (tenant, sends, its bucket) not sent after all; `unused`: no request was made; `retry`: as in
        `acquire`; `refused`: for whom, as far as that is evidence (nobody of them was known to be refused);
        `failed_for`: whose sends a failed request held (nobody's: its batch speaks for itself).
        """
        reply = self._call(
            "settle",
            grant=grant,
            batch=batch,
            rail=rail,
            event=event,
            epoch=epoch,
            unused=unused,
            back=[[tenant, sends, bucket.capacity, bucket.rail] for tenant, sends, bucket in back],
            quota_back=sum(sends for _, sends, _ in back),
            request=limits.request.packed(),
            quota=limits.quota.packed() if limits.quota else None,
            retry=limits.retries.packed() if retry else None,
            trickle=limits.trickle.packed(),
            refused=[refused.code, list(refused.names)] if refused else None,
            failed_for=list(failed_for),
            retry_after=retry_after,
            remaining=remaining,
            slack=HEADER_SLACK,
            jitter=random.random(),  # noqa: S311 — spreads probes, guards nothing
        )
        return Settled(reply[2].decode(), reply[3] == 1, reply[4] == 1, reply[5] / 1e6, reply[6] / 1e6)

    def spent(self) -> int:
        """Request tokens spent since Redis last lost its memory: at least the requests made, equal without faults."""
        return int(cast("bytes | None", self._client.hget(self.keys[0], "spent")) or 0)

    def _call(self, operation: str, **arguments: Any) -> list[Any]:
        packed = json.dumps(arguments, separators=(",", ":"))
        return cast("list[Any]", self._script(keys=self.keys, args=[operation, packed]))
