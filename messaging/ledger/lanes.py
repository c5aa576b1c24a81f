"""What the dispatcher writes on lanes whose content a provider refused.

Called first in a transaction, before the batch is locked (the order of locks). A tenant's lane is written under the
tenant row's lock, because a missing lane row cannot be locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from core.db import ledger_cursor
from messaging.ledger.record import Failure
from messaging.rails import Channel, Rail

#: Seconds that a lane is held at first, and at most: each hold that a trial did not end is twice as long. A provider that is
#: out of order for a moment costs seconds, a domain that nobody verifies costs a request every ten minutes.
FIRST_HOLD = 10
LONGEST_HOLD = 600


@dataclass(frozen=True, slots=True)
class LaneKey:
    tenant: int
    blast: UUID | None

    @property
    def place(self) -> tuple[int, str]:
        """By which lanes are put in order: one without a blast cannot be compared with one that has one."""
        return self.tenant, str(self.blast)


def _split(lanes: Sequence[LaneKey]) -> tuple[list[int], list[UUID]]:
    return sorted({k.tenant for k in lanes if k.blast is None}), sorted({k.blast for k in lanes if k.blast is not None})


def _write(
    channel: Channel,
    rail: Rail,
    lanes: Sequence[LaneKey],
    *,
    isolated: bool,
    why: Failure | None = None,
    hold: int | None = None,
) -> None:
    """`hold`: seconds, or None for the next longer hold; without `why` the lanes are held no more."""
    tenants, blasts = _split(lanes)
    parameters = {
        "channel": channel,
        "rail": rail,
        "isolated": isolated,
        "code": why.code or "refused" if why else "",
        "detail": why.detail if why else "",
        "hold": hold,
        "first": FIRST_HOLD,
        "longest": LONGEST_HOLD,
    }
    with ledger_cursor() as sql:
        if tenants:
            sql.run(
                "SELECT FROM core_tenants WHERE id = ANY (%(tenants)s::bigint[]) ORDER BY id FOR NO KEY UPDATE",
                {"tenants": tenants},
            )
            sql.run(
                "INSERT INTO messaging_tenant_lanes"
                " (tenant_id, channel, rail, paused, isolated, hold_code, hold_detail, hold_seconds)"
                " SELECT t, %(channel)s, %(rail)s, false, false, '', '', 0 FROM unnest(%(tenants)s::bigint[]) t ORDER BY t"
                " ON CONFLICT (tenant_id, channel, rail) DO NOTHING",
                {"channel": channel, "rail": rail, "tenants": tenants},
            )
            sql.run(
                f"UPDATE messaging_tenant_lanes l SET {_SET}"
                " WHERE l.tenant_id = ANY (%(tenants)s::bigint[]) AND l.channel = %(channel)s AND l.rail = %(rail)s",
                parameters | {"tenants": tenants},
            )
        if blasts:
            sql.run(
                "SELECT FROM messaging_blasts WHERE id = ANY (%(blasts)s::uuid[]) ORDER BY id FOR UPDATE",
                {"blasts": blasts},
            )
            sql.run(
                f"UPDATE messaging_blasts l SET {_SET} WHERE l.id = ANY (%(blasts)s::uuid[])",
                parameters | {"blasts": blasts},
            )


_SECONDS = (
    "CASE WHEN %(code)s::text = '' THEN 0"
    " ELSE coalesce(%(hold)s::int, least(%(longest)s, greatest(%(first)s, 2 * l.hold_seconds))) END"
)
_SET = (
    "isolated = %(isolated)s, hold_code = %(code)s::text, hold_detail = %(detail)s,"
    f" hold_seconds = {_SECONDS},"
    " held_until = CASE WHEN %(code)s::text = '' THEN NULL"
    f" ELSE clock_timestamp() + {_SECONDS} * interval '1 second' END"
)


def isolate(channel: Channel, rail: Rail, lanes: Sequence[LaneKey]) -> None:
    """From now on each of these lanes goes out in a batch of its own: the next refusal names the lane."""
    _write(channel, rail, lanes, isolated=True)


def hold(channel: Channel, rail: Rail, lane: LaneKey, why: Failure, seconds: int | None = None) -> None:
    """The lane waits for `seconds` (None: 10 s at first, twice as long each time, 10 minutes at most). Then one of its
    sends is tried."""
    _write(channel, rail, [lane], isolated=True, why=why, hold=seconds)


def release(channel: Channel, rail: Rail, lanes: Sequence[LaneKey]) -> None:
    """A batch of each of these lanes was accepted: they are like any other again."""
    _write(channel, rail, lanes, isolated=False)


_ACCEPTED_SINCE = """
SELECT EXISTS (
    SELECT FROM (SELECT * FROM messaging_batches ORDER BY id DESC LIMIT 50) b
    WHERE b.provider = %(provider)s AND b.state IN ('accepted', 'accepted_in_part') AND b.created_at > %(since)s
)
"""


def others_were_accepted(provider: str, channel: Channel, rail: Rail, lane: LaneKey) -> bool:
    """Whether the provider took other batches since this lane was held: then what it refuses is the lane's own."""
    with ledger_cursor() as sql:
        if lane.blast is None:
            row = sql.one(
                "SELECT held_until - hold_seconds * interval '1 second' FROM messaging_tenant_lanes"
                " WHERE tenant_id = %(tenant)s AND channel = %(channel)s AND rail = %(rail)s AND hold_code <> ''",
                {"tenant": lane.tenant, "channel": channel, "rail": rail},
            )
        else:
            row = sql.one(
                "SELECT held_until - hold_seconds * interval '1 second' FROM messaging_blasts"
                " WHERE id = %(blast)s AND hold_code <> ''",
                {"blast": lane.blast},
            )
        accepted = sql.one(_ACCEPTED_SINCE, {"provider": provider, "since": row[0]}) if row else None
    return bool(accepted and accepted[0])
