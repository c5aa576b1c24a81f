"""Sender domains that the provider refuses (`models.SenderHold`): found by halving, held, tried again by one send.

They are the provider's word on a domain, whoever sends in its name: all lanes of all its tenants wait for the one trial.
Locked after the lanes and before the batch; a claim takes no lock on them that anybody waits for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from core.db import ledger_cursor
from messaging.ledger.lanes import FIRST_HOLD, LONGEST_HOLD
from messaging.ledger.record import Failure
from messaging.rails import Channel

#: Seconds for which a process believes what it has read. Until then it may send for a domain that is held elsewhere, which
#: costs a request that is refused.
TTL = 1.0


@dataclass(frozen=True, slots=True)
class Watched:
    """`left`: seconds until one send may try again; None: a suspect, which goes with its `group` or alone."""

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
    return {
        row.domain: Watched(row.domain, row.left if row.left is None else row.left - age, row.group, row.why)
        for row in found.rows
    }


def forget() -> None:
    """Read again at the next look: after a change of one's own."""
    with _lock:
        _cache.clear()


def _read(channel: Channel) -> list[Watched]:
    with ledger_cursor() as sql:
        rows = sql.all(
            "SELECT domain, extract(epoch FROM held_until - clock_timestamp())::float8, coalesce(party::text, domain),"
            " hold_code, hold_detail FROM messaging_sender_holds WHERE channel = %(channel)s",
            {"channel": channel},
        )
    return [Watched(domain, left, group, Failure(code, detail)) for domain, left, group, code, detail in rows]


def domains_of(contents: Collection[int]) -> dict[int, str]:
    """The sender domain of each content."""
    with ledger_cursor() as sql:
        rows = sql.all(
            "SELECT id, from_domain FROM messaging_contents WHERE id = ANY (%(ids)s::bigint[])", {"ids": list(contents)}
        )
    return dict(rows)


def suspect(channel: Channel, parties: Mapping[str, UUID | None]) -> None:
    """A request with these domains was refused for one of them: from now on those of one party go apart. None: alone.

    One that is held stays so.
    """
    with ledger_cursor() as sql:
        sql.run(
            "INSERT INTO messaging_sender_holds (channel, domain, party, hold_code, hold_detail, hold_seconds)"
            " SELECT %(channel)s, d.domain, d.party, '', '', 0"
            " FROM unnest(%(domains)s::text[], %(parties)s::uuid[]) AS d (domain, party) ORDER BY d.domain"
            " ON CONFLICT (channel, domain) DO UPDATE SET party = excluded.party",
            {"channel": channel, "domains": list(parties), "parties": list(parties.values())},
        )
    transaction.on_commit(forget)


_HOLD = """
INSERT INTO messaging_sender_holds AS h (channel, domain, hold_code, hold_detail, hold_seconds, held_until)
VALUES (%(channel)s, %(domain)s, %(code)s, %(detail)s, %(first)s,
        clock_timestamp() + %(first)s * interval '1 second')
ON CONFLICT (channel, domain) DO UPDATE
SET party = NULL, hold_code = excluded.hold_code, hold_detail = excluded.hold_detail,
    hold_seconds = least(%(longest)s, greatest(%(first)s, 2 * h.hold_seconds)),
    held_until = clock_timestamp() + least(%(longest)s, greatest(%(first)s, 2 * h.hold_seconds)) * interval '1 second'
RETURNING hold_seconds
"""


def hold(channel: Channel, domain: str, why: Failure) -> float:
    """The provider refuses this domain. Returns the seconds until one send tries again: 10, then twice as long, at most
    10 minutes."""
    with ledger_cursor() as sql:
        row = sql.one(
            _HOLD,
            {
                "channel": channel,
                "domain": domain,
                "code": why.code or "refused",
                "detail": why.detail,
                "first": FIRST_HOLD,
                "longest": LONGEST_HOLD,
            },
        )
    transaction.on_commit(forget)
    assert row is not None
    return float(row[0])


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


# Blasts that waited for the domain have their trial now; single sends come back at the end of their wait.
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
