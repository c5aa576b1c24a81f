"""The claims of the last minutes, kept in Redis: what a database that was moved to an earlier moment does not know any more.

A failover to a standby that was behind, or a restore, makes due again what was claimed and sent. So each claim is noted here
before its request, and a request is made only if the claim was committed on the server that `lost_claims` has looked at last. A
server is known by the moment of its start: a standby that takes over or a restored copy has another one, at once, and whatever
the client may ask (`pg_control_checkpoint` tells of a new timeline from the next checkpoint on, and not to everybody).

There is no address and no body in a claim; it is sealed since a digest allows guesses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

from core.security.crypto import keyring
from core.security.hashing import canonical_json
from core.telemetry.redis_client import quick_client
from messaging.domain.rails import Channel, Rail

#: Seconds for which a claim is kept, and how many at most (of a hundred sends each: 17 MB).
KEEP_SECONDS, KEEP_CLAIMS = 900, 10_000
#: SQL: the server that runs this statement.
SERVER = "extract(epoch FROM pg_postmaster_start_time())::text"

_SERVER, _CLAIMS, _LOOKING = "notif:ledger:server", "notif:ledger:claims", "notif:ledger:looking"
_REFUSED = "notif:ledger:refused"
#: In place of a server, while what another one lacks is looked for.
_NONE = "-"
#: Seconds after which another process may look, if the one that began has not said that it is done.
_LOOK_SECONDS = 2
_PAGE = 200
_NOTE = Path(__file__).with_name("claims.lua").read_text()


@dataclass(frozen=True, slots=True)
class Claim:
    """All that a batch's row is made of. `sends`: the bytes of their ids, in the order of the request."""

    batch: UUID
    provider: str
    channel: Channel
    rail: Rail
    idempotency_key: str
    digest: bytes
    rendered_at: datetime
    sends: Sequence[bytes]

    def sealed(self) -> bytes:
        head = canonical_json(
            {
                "provider": self.provider,
                "channel": self.channel,
                "rail": self.rail,
                "key": self.idempotency_key,
                "digest": self.digest.hex(),
                "rendered_at": self.rendered_at.isoformat(),
            }
        )
        return keyring().seal(head + b"\n" + b"".join(self.sends), self.batch.bytes)


@dataclass(frozen=True, slots=True)
class Noted:
    batch: UUID
    at: datetime
    sealed: bytes

    def claim(self) -> Claim:
        """Raises core.security.crypto.SealError."""
        head, _, ids = keyring().open(self.sealed, self.batch.bytes).partition(b"\n")
        found = json.loads(head)
        return Claim(
            self.batch,
            found["provider"],
            Channel(found["channel"]),
            Rail(found["rail"]),
            found["key"],
            bytes.fromhex(found["digest"]),
            datetime.fromisoformat(found["rendered_at"]),
            [ids[i : i + 16] for i in range(0, len(ids), 16)],
        )


def note(server: str, batch: UUID, fence: int, claim: Claim | None = None) -> bool:
    """Whether whoever holds `batch` under `fence` may request it: the ledger is still on `server`, and no send was taken from
    it. Then `claim`, of a new batch, is noted. Raises redis.RedisError."""
    return _ask(server, _holder(batch, fence), batch.bytes, claim.sealed() if claim else b"")


def is_known(server: str) -> bool:
    """Whether the ledger is still on `server`. Raises redis.RedisError."""
    return _ask(server, b"", b"", b"")


def _ask(server: str, holder: bytes, batch: bytes, sealed: bytes) -> bool:
    script = quick_client().register_script(_NOTE)
    return bool(
        script(keys=[_SERVER, _CLAIMS, _REFUSED], args=[server, holder, batch, sealed, KEEP_SECONDS, KEEP_CLAIMS])
    )


def _holder(batch: UUID, fence: int) -> bytes:
    return batch.bytes + str(fence).encode()


def refuse(batch: UUID, fence: int) -> None:
    """Whoever holds `batch` under `fence` may not request it any more: it is not what he has in hand. Remembered for longer than
    anybody can hold it. Raises redis.RedisError."""
    with quick_client().pipeline() as pipe:
        pipe.sadd(_REFUSED, _holder(batch, fence))
        pipe.expire(_REFUSED, KEEP_SECONDS)
        pipe.execute()


def begin_look() -> str | None:
    """From here on no request is made, until `end_look`. Returns whose look it is; None: somebody else looks. It lasts for
    `_LOOK_SECONDS`, unless it is kept, and then is anybody's. Raises redis.RedisError."""
    look = uuid4().hex
    if not quick_client().set(_LOOKING, look, nx=True, ex=_LOOK_SECONDS):
        return None
    quick_client().set(_SERVER, _NONE)
    return look


def keep_look(look: str) -> None:
    """It goes on: `_LOOK_SECONDS` from now. Raises redis.RedisError."""
    if quick_client().get(_LOOKING) == look.encode():
        quick_client().expire(_LOOKING, _LOOK_SECONDS)


def abandon_look(look: str) -> None:
    """It came to nothing: whoever comes next looks, at once. Raises redis.RedisError."""
    if quick_client().get(_LOOKING) == look.encode():
        quick_client().delete(_LOOKING)


def wait_for_look() -> None:
    """Until whoever looks is done, or has vanished. Raises redis.RedisError."""
    while quick_client().exists(_LOOKING):
        time.sleep(0.1)


def end_look(server: str) -> None:
    """What `server` lacked is there again. Raises redis.RedisError."""
    with quick_client().pipeline() as pipe:
        pipe.set(_SERVER, server)
        pipe.delete(_LOOKING)
        pipe.execute()


def newest_first(at_most: int = KEEP_CLAIMS) -> Iterator[list[Noted]]:
    """The claims of the last `KEEP_SECONDS`, in pages. Raises redis.RedisError."""
    client = quick_client()
    seconds, _ = client.time()
    oldest, before = f"{(seconds - KEEP_SECONDS) * 1000}", "+"
    while at_most > 0:
        entries = cast(
            "list[tuple[bytes, dict[bytes, bytes]]]",
            client.xrevrange(_CLAIMS, max=before, min=oldest, count=min(_PAGE, at_most)),
        )
        if not entries:
            return
        yield [Noted(UUID(bytes=said[b"batch"]), _time_of(pk), said[b"claim"]) for pk, said in entries]
        at_most -= len(entries)
        before = f"({entries[-1][0].decode()}"


def _time_of(entry: bytes) -> datetime:
    return datetime.fromtimestamp(int(entry.partition(b"-")[0]) / 1000, UTC)
