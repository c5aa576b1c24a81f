"""What the dispatcher writes on lanes whose content a provider refused (`messaging.isolation.bisection` says what and why).

Called first in a transaction, before the batch is locked (the order of locks). A tenant's lane is written under the
tenant row's lock, because a missing lane row cannot be locked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from core.db.cursor import LedgerCursor, ledger_cursor
from messaging.domain.lane import LaneKey, Search
from messaging.domain.rails import Channel, Rail
from messaging.ledger.claim_gate import close_blasts, close_tenants
from messaging.ledger.record import Failure

#: Seconds that a lane is held at first, and at most: each hold that a trial did not end is twice as long. A provider that is
#: out of order for a moment costs seconds, a content that nobody mends costs a request every ten minutes.
FIRST_HOLD = 10
LONGEST_HOLD = 600


#: Stalls from which on a lane stays apart from others until they are forgotten, whatever of it is accepted (`ledger.stalls`).
STALLS_APART = 10


def _split(lanes: Collection[LaneKey]) -> tuple[list[LaneKey], list[UUID]]:
    """Lanes of single sends, and blasts."""
    singles = sorted((k for k in lanes if k.blast is None), key=lambda k: k.place)
    return singles, sorted({k.blast for k in lanes if k.blast is not None})


_LOCK_TENANTS = "SELECT FROM core_tenants WHERE id = ANY (%(tenants)s::bigint[]) ORDER BY id FOR NO KEY UPDATE"
_LOCK_BLASTS = "SELECT FROM messaging_blasts WHERE id = ANY (%(blasts)s::uuid[]) ORDER BY id FOR UPDATE"
_ADD_LANES = """
INSERT INTO messaging_tenant_lanes (tenant_id, channel, rail, priority, paused, isolated, hold_code, hold_detail, hold_seconds)
SELECT k.t, %(channel)s, %(rail)s, k.p, false, false, '', '', 0
FROM unnest(%(tenants)s::bigint[], %(priorities)s::smallint[]) AS k (t, p) ORDER BY 1, 4
ON CONFLICT (tenant_id, channel, rail, priority) DO NOTHING
"""


_SECONDS = (
    "CASE WHEN %(code)s::text = '' THEN 0"
    " ELSE coalesce(%(hold)s::float8, least(%(longest)s, greatest(%(first)s, 2 * l.hold_seconds))) END"
)
_SET = (
    "SET isolated = %(isolated)s OR (l.stalls >= %(apart)s AND l.stalls_until > clock_timestamp()),"
    " party = %(party)s::uuid, suspects = %(suspects)s, convicting = %(convicting)s,"
    " hold_code = %(code)s::text, hold_detail = %(detail)s,"
    f" hold_seconds = {_SECONDS},"
    " held_until = CASE WHEN %(code)s::text = '' THEN NULL"
    f" ELSE clock_timestamp() + {_SECONDS} * interval '1 second' END"
)
_KEYS = "unnest(%(tenants)s::bigint[], %(priorities)s::smallint[]) AS k (tenant_id, priority)"
_ON_KEYS = """
WHERE l.tenant_id = k.tenant_id AND l.channel = %(channel)s AND l.rail = %(rail)s AND l.priority = k.priority
"""
_OF_TENANTS = f"FROM {_KEYS} {_ON_KEYS}"


#: Of a tenant's lane: what no row says as well. Such a row is deleted.
SAYS_NOTHING = (
    "NOT paused AND NOT isolated AND hold_code = '' AND NOT coalesce(stalls_until > clock_timestamp(), false)"
)


def _write(
    channel: Channel,
    rail: Rail,
    lanes: Sequence[LaneKey],
    *,
    isolated: bool,
    party: UUID | None = None,
    search: Search = Search(),  # noqa: B008 — immutable
    why: Failure | None = None,
    hold: float | None = None,
) -> None:
    """`hold`: seconds, or None for the next longer hold; without `why` the lanes are held no more."""
    singles, blasts = _split(lanes)
    parameters = named(channel, rail, singles) | {
        "blasts": blasts,
        "isolated": isolated,
        "party": party,
        "suspects": search.suspects,
        "convicting": search.convicting,
        "code": why.code or "refused" if why else "",
        "detail": why.detail if why else "",
        "hold": hold,
        "first": FIRST_HOLD,
        "longest": LONGEST_HOLD,
        "apart": STALLS_APART,
    }
    lock(lanes)
    with ledger_cursor() as sql:
        if singles:
            add_missing(sql, parameters)
            sql.run(f"UPDATE messaging_tenant_lanes l {_SET} {_OF_TENANTS}", parameters)
        if blasts:
            sql.run(f"UPDATE messaging_blasts l {_SET} WHERE l.id = ANY (%(blasts)s::uuid[])", parameters)


def named(channel: Channel, rail: Rail, singles: Sequence[LaneKey]) -> dict[str, Any]:
    return {
        "channel": channel,
        "rail": rail,
        "tenants": [k.tenant for k in singles],
        "priorities": [k.priority for k in singles],
    }


def add_missing(sql: LedgerCursor, parameters: dict[str, Any]) -> None:
    """Rows for the lanes of single sends in `parameters` (see `named`), under the lock of their tenants."""
    sql.run(_ADD_LANES, parameters)


def lock(lanes: Collection[LaneKey]) -> None:
    """Keep claims and others who write on these lanes out until the transaction ends. Of several lanes, all at once and before
    any of them is written: that is the order of locks."""
    singles, blasts = _split(lanes)
    with ledger_cursor() as sql:
        if singles:
            close_tenants({k.tenant for k in singles})
            sql.run(_LOCK_TENANTS, {"tenants": [k.tenant for k in singles]})
        if blasts:
            close_blasts(blasts)
            sql.run(_LOCK_BLASTS, {"blasts": blasts})


def isolate(channel: Channel, rail: Rail, lanes: Sequence[LaneKey], party: UUID | None = None) -> None:
    """From now on these lanes go out apart from others, those of one `party` together: the next refusal says more."""
    _write(channel, rail, lanes, isolated=True, party=party)


def keep_apart(channel: Channel, rail: Rail, lanes: Collection[LaneKey]) -> None:
    """These lanes of single sends go alone from now on. What is known of one that does so already stays known."""
    singles, _ = _split(lanes)
    parameters = named(channel, rail, singles)
    lock(singles)
    with ledger_cursor() as sql:
        add_missing(sql, parameters)
        sql.run(
            f"UPDATE messaging_tenant_lanes l SET isolated = true {_OF_TENANTS} AND NOT isolated AND hold_code = ''",
            parameters,
        )


def search_on(channel: Channel, rail: Rail, lane: LaneKey, search: Search) -> None:
    """A culprit is looked for in the lane; without suspects it only goes alone once more. It is held no longer."""
    _write(channel, rail, [lane], isolated=True, search=search)


def hold(
    channel: Channel,
    rail: Rail,
    lane: LaneKey,
    why: Failure,
    seconds: float | None = None,
    search: Search = Search(),  # noqa: B008 — immutable
) -> None:
    """The lane waits for `seconds` (None: 10 s at first, twice as long each time, 10 minutes at most). Then one
    of its sends is tried."""
    _write(channel, rail, [lane], isolated=True, search=search, why=why, hold=seconds)


def release(channel: Channel, rail: Rail, lanes: Sequence[LaneKey]) -> None:
    """A batch of these lanes was accepted: they are like any other again, and what is said of none goes."""
    _write(channel, rail, lanes, isolated=False)
    singles, _ = _split(lanes)
    if singles:
        with ledger_cursor() as sql:
            sql.run(
                f"DELETE FROM messaging_tenant_lanes l USING {_KEYS} {_ON_KEYS} AND {SAYS_NOTHING}",
                named(channel, rail, singles),
            )


@dataclass(frozen=True, slots=True)
class Known:
    """`held`: seconds until the lane's hold ends (0 or less: it is on trial); None: it is not held."""

    search: Search = Search()  # noqa: RUF009 — immutable
    held: float | None = None


_KNOWN = (
    "SELECT suspects, convicting,"
    " CASE WHEN hold_code <> '' THEN extract(epoch FROM held_until - clock_timestamp())::float8 END"
)
_KNOWN_SINGLE = (
    f"{_KNOWN} FROM messaging_tenant_lanes WHERE tenant_id = %(tenant)s AND channel = %(channel)s AND rail = %(rail)s"
    " AND priority = %(priority)s"
)
_KNOWN_BLAST = f"{_KNOWN} FROM messaging_blasts WHERE id = %(blast)s"


def known(channel: Channel, rail: Rail, lane: LaneKey) -> Known:
    """What is known of a lane, which is locked for this transaction."""
    lock([lane])
    with ledger_cursor() as sql:
        if lane.blast is None:
            row = sql.one(
                _KNOWN_SINGLE,
                {"tenant": lane.tenant, "channel": channel, "rail": rail, "priority": lane.priority},
            )
        else:
            row = sql.one(_KNOWN_BLAST, {"blast": lane.blast})
    return Known(Search(row[0], row[1]), row[2]) if row else Known()


_QUEUED_SINGLES = (
    "s.tenant_id = %(tenant)s AND s.channel = %(channel)s AND s.rail = %(rail)s"
    " AND s.priority = %(priority)s AND s.status = 'queued' AND s.blast_id IS NULL"
)
_QUEUED_OF_BLAST = "s.blast_id = %(blast)s AND s.status = 'queued'"
# Of the provider's last batches: whether it takes anything is asked in vain if they are all older.
_ONLY_ONE = """
SELECT NOT EXISTS (SELECT FROM messaging_sends s WHERE {queued}) AND EXISTS (
    SELECT FROM (SELECT * FROM messaging_batches ORDER BY id DESC LIMIT 50) b
    JOIN {table} l ON {lane} AND l.hold_code <> '' AND b.created_at > l.held_until - l.hold_seconds * interval '1 second'
    WHERE b.provider = %(provider)s AND b.state IN ('accepted', 'accepted_in_part')
)
"""
_ONLY_SINGLE = _ONLY_ONE.format(
    queued=_QUEUED_SINGLES,
    table="messaging_tenant_lanes",
    lane="l.tenant_id = %(tenant)s AND l.channel = %(channel)s AND l.rail = %(rail)s AND l.priority = %(priority)s",
)
_ONLY_OF_BLAST = _ONLY_ONE.format(queued=_QUEUED_OF_BLAST, table="messaging_blasts", lane="l.id = %(blast)s")


def is_only_one(provider: str, channel: Channel, rail: Rail, lane: LaneKey) -> bool:
    """Whether nothing waits in this held lane but what is in hand, and the provider took other batches since it was held."""
    with ledger_cursor() as sql:
        row = sql.one(
            _ONLY_SINGLE if lane.blast is None else _ONLY_OF_BLAST,
            {
                "provider": provider,
                "channel": channel,
                "rail": rail,
                "priority": lane.priority,
                "tenant": lane.tenant,
                "blast": lane.blast,
            },
        )
    return bool(row and row[0])
