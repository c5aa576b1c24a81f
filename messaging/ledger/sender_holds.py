"""Sender domains that the provider refuses (`models.SenderHold`): found by halving, held, tried again by one send.

They are the provider's word on a domain, whoever sends in its name: all lanes of all its tenants wait for the one trial.
Locked after the lanes and before the batch; a claim takes no lock on them that anybody waits for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from django.db import transaction

from core.db.cursor import ledger_cursor
from messaging.domain.rails import Channel
from messaging.ledger.lanes import FIRST_HOLD, LONGEST_HOLD
from messaging.ledger.record import Failure

#: Seconds after which a send that waits for a held domain is looked at again whatever its hold says. Nothing needs it.
LOOK_AGAIN = 3600.0
#: Seconds for which a process believes what it has read. Until then it may send for a domain that is held elsewhere, which
#: costs a request that is refused.
TTL = 1.0


@dataclass(frozen=True, slots=True)
class Watched:
    """`left`: seconds until one send may try again; None: a suspect, which goes with its `group` or alone."""

    hold: int  # the row
    domain: str
    left: float | None
    group: str
    why: Failure


@dataclass(frozen=True, slots=True)
class _Read:
    at: float
    rows: Sequence[Watched]


_lock = threading.Lock()
_cache: dict[str, _Read] = {}


def watched(channel: Channel) -> dict[str, Watched]:
    """By domain; nearly always empty, and then it costs a query a second and process."""
    with _lock:
        found = _cache.get(channel)
    if found is None or time.monotonic() - found.at > TTL:
        found = _Read(time.monotonic(), _read(channel))
        with _lock:
            _cache[channel] = found
    age = time.monotonic() - found.at
    return {row.domain: replace(row, left=None if row.left is None else row.left - age) for row in found.rows}


def forget() -> None:
    """Read again at the next look: after a change of one's own."""
    with _lock:
        _cache.clear()


def _read(channel: Channel) -> list[Watched]:
    with ledger_cursor() as sql:
        rows = sql.all(
            "SELECT id, domain, extract(epoch FROM held_until - clock_timestamp())::float8, coalesce(party::text, domain),"
            " hold_code, hold_detail FROM messaging_sender_holds WHERE channel = %(channel)s",
            {"channel": channel},
        )
    return [Watched(pk, domain, left, group, Failure(code, detail)) for pk, domain, left, group, code, detail in rows]


def held(channel: Channel, domains: Collection[str]) -> bool:
    """Whether one of these domains is known to be refused: that explains a refusal of all of them."""
    forget()
    known = watched(channel)
    return any(d in known and known[d].left is not None for d in domains)


def domains_of(contents: Collection[int]) -> dict[int, str]:
    """The sender domain of each content; "" of one that is missing."""
    with ledger_cursor() as sql:
        rows = sql.all(
            "SELECT id, from_domain FROM messaging_contents WHERE id = ANY (%(ids)s::bigint[])", {"ids": list(contents)}
        )
    return dict.fromkeys(contents, "") | dict(rows)


def suspect(channel: Channel, parties: Mapping[str, UUID | None]) -> None:
    """A request with these domains was refused for one of them: from now on those of one party go apart. None: alone.

    One that is held stays so.
    """
    with ledger_cursor() as sql:
        sql.run(
            "INSERT INTO messaging_sender_holds (channel, domain, party, hold_code, hold_detail, hold_seconds)"
            " SELECT %(channel)s, d.domain, d.party, '', '', 0"
            " FROM unnest(%(domains)s::text[], %(parties)s::uuid[]) AS d (domain, party) ORDER BY d.domain"
            " ON CONFLICT (channel, domain) DO UPDATE SET party = excluded.party, written_at = clock_timestamp()",
            {"channel": channel, "domains": list(parties), "parties": list(parties.values())},
        )
    transaction.on_commit(forget)


# Only the answer to its trial makes a hold longer. Others were under way when it began, or left before their process knew of it.
_HOLD = """
INSERT INTO messaging_sender_holds AS h (channel, domain, hold_code, hold_detail, hold_seconds, held_until, written_at)
VALUES (%(channel)s, %(domain)s, %(code)s, %(detail)s, %(first)s,
        clock_timestamp() + %(first)s * interval '1 second', clock_timestamp())
ON CONFLICT (channel, domain) DO UPDATE
SET party = NULL, hold_code = excluded.hold_code, hold_detail = excluded.hold_detail, written_at = clock_timestamp(),
    hold_seconds = least(%(longest)s, greatest(%(first)s, 2 * h.hold_seconds)),
    held_until = clock_timestamp() + least(%(longest)s, greatest(%(first)s, 2 * h.hold_seconds)) * interval '1 second'
WHERE h.hold_code = ''
   OR (%(trial)s AND h.written_at <= (SELECT created_at FROM messaging_batches WHERE id = %(batch)s))
RETURNING id, hold_seconds::float8, true
"""
_HELD = """
SELECT id, greatest(0, extract(epoch FROM held_until - clock_timestamp()))::float8, false
FROM messaging_sender_holds WHERE channel = %(channel)s AND domain = %(domain)s
"""


@dataclass(frozen=True, slots=True)
class Held:
    """`seconds` until one send tries again. `new`: this refusal began the hold, or made it longer."""

    hold: int
    seconds: float
    new: bool


def hold(channel: Channel, domain: str, why: Failure, batch: UUID, *, trial: bool) -> Held:
    """The provider refuses this domain: 10 s at first; after each refused trial twice as long, 10 minutes at most.

    `batch` was refused; `trial`: it tried the domain, or a suspect, and held nothing else.
    """
    parameters = {
        "channel": channel,
        "domain": domain,
        "code": why.code or "refused",
        "detail": why.detail,
        "first": FIRST_HOLD,
        "longest": LONGEST_HOLD,
        "batch": batch,
        "trial": trial,
    }
    with ledger_cursor() as sql:
        row = sql.one(_HOLD, parameters) or sql.one(_HELD, parameters)
    transaction.on_commit(forget)
    assert row is not None
    return Held(*row)


# As in `record.give_back`; single sends have no blast that could be cancelled.
_SET_ASIDE = """
UPDATE messaging_sends s
SET status = CASE WHEN s.expires_at <= clock_timestamp() THEN 'expired' ELSE 'scheduled' END,
    not_before = clock_timestamp() + %(look_again)s * interval '1 second', held_by = %(hold)s,
    error_code = %(code)s, error_detail = %(detail)s
WHERE s.id = ANY (%(ids)s::uuid[]) AND s.batch_id = %(batch)s AND s.status = 'sending'
"""


def set_aside(batch: UUID, hold: int, sends: Collection[UUID], why: Failure) -> None:
    """These single sends wait for as long as their domain is held: the clock wakes them (`ledger.sweeps.wake_held`)."""
    if sends:
        with ledger_cursor() as sql:
            sql.run(
                _SET_ASIDE,
                {
                    "batch": batch,
                    "hold": hold,
                    "ids": list(sends),
                    "code": why.code,
                    "detail": why.detail,
                    "look_again": LOOK_AGAIN,
                },
            )


def may_try(channel: Channel, domain: str) -> bool:
    """Whether the caller's send is the one that tries again: true once for each hold that has ended."""
    with ledger_cursor() as sql:
        won = sql.run(
            "UPDATE messaging_sender_holds SET held_until = clock_timestamp() + hold_seconds * interval '1 second'"
            " WHERE id = ANY (ARRAY (SELECT id FROM messaging_sender_holds WHERE channel = %(channel)s"
            " AND domain = %(domain)s AND held_until <= clock_timestamp() FOR UPDATE SKIP LOCKED))",
            {"channel": channel, "domain": domain},
        )
    transaction.on_commit(forget)
    return won == 1


# Blasts that waited for the domain have their trial now; single sends are the clock's.
_WAKE = """
UPDATE messaging_blasts SET held_until = clock_timestamp() WHERE id = ANY (ARRAY (
    SELECT b.id FROM messaging_blasts b JOIN messaging_contents c ON c.id = b.content_id
    WHERE b.finished_at IS NULL AND b.state = 'running' AND b.channel = %(channel)s AND b.hold_code <> ''
      AND b.held_until > clock_timestamp() AND c.from_domain = ANY (%(domains)s::text[])
    ORDER BY b.id FOR UPDATE OF b
))
"""


def clear(channel: Channel, domains: Collection[str]) -> None:
    """A request with nothing but these domains was accepted: they are like any other again. In a transaction of its own."""
    with ledger_cursor() as sql:
        parameters = {"channel": channel, "domains": list(domains)}
        sql.run(_WAKE, parameters)
        sql.run(
            "DELETE FROM messaging_sender_holds WHERE channel = %(channel)s AND domain = ANY (%(domains)s::text[])",
            parameters,
        )
    transaction.on_commit(forget)


_WRITTEN = "channel = %(channel)s AND written_at > clock_timestamp() - %(seconds)s * interval '1 second'"


def lift(channel: Channel, seconds: float) -> int:
    """What was written of sender domains in the last `seconds` was the provider's own trouble: suspects are like any other again,
    and what is held is tried at once. Returns how many holds that were. In a transaction of its own."""
    parameters: dict[str, object] = {"channel": channel, "seconds": seconds}
    with ledger_cursor() as sql:
        rows = sql.all(f"SELECT domain FROM messaging_sender_holds WHERE {_WRITTEN} AND hold_code <> ''", parameters)
        parameters["domains"] = [row[0] for row in rows]
        sql.run(_WAKE, parameters)
        sql.run(
            "UPDATE messaging_sender_holds SET held_until = clock_timestamp() WHERE channel = %(channel)s"
            " AND domain = ANY (%(domains)s::text[]) AND held_until > clock_timestamp()",
            parameters,
        )
        sql.run(f"DELETE FROM messaging_sender_holds WHERE {_WRITTEN} AND hold_code = ''", parameters)
    transaction.on_commit(forget)
    return len(rows)
