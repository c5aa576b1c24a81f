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

#: Seconds until one send of a held lane finds out whether its cause is gone.
HOLD = 600


@dataclass(frozen=True, slots=True, order=True)
class LaneKey:
    tenant: int
    blast: UUID | None


def _split(lanes: Sequence[LaneKey]) -> tuple[list[int], list[UUID]]:
    return sorted({k.tenant for k in lanes if k.blast is None}), sorted({k.blast for k in lanes if k.blast is not None})


def _write(channel: Channel, rail: Rail, lanes: Sequence[LaneKey], values: dict[str, object]) -> None:
    tenants, blasts = _split(lanes)
    setting = {"channel": channel, "rail": rail, "hold": HOLD, "code": "", "detail": "", "isolated": True} | values
    held_until = "CASE WHEN %(code)s::text = '' THEN NULL ELSE clock_timestamp() + %(hold)s * interval '1 second' END"
    with ledger_cursor() as sql:
        if tenants:
            sql.run(
                "SELECT FROM core_tenants WHERE id = ANY (%(tenants)s::bigint[]) ORDER BY id FOR NO KEY UPDATE",
                {"tenants": tenants},
            )
            sql.run(
                "INSERT INTO messaging_tenant_lanes"
                " (tenant_id, channel, rail, paused, isolated, hold_code, hold_detail, held_until)"
                " SELECT t, %(channel)s, %(rail)s, false, %(isolated)s, %(code)s::text, %(detail)s, "
                f"{held_until} FROM unnest(%(tenants)s::bigint[]) t ORDER BY t"
                " ON CONFLICT (tenant_id, channel, rail) DO UPDATE SET isolated = excluded.isolated,"
                " hold_code = excluded.hold_code, hold_detail = excluded.hold_detail, held_until = excluded.held_until",
                setting | {"tenants": tenants},
            )
        if blasts:
            sql.run(
                "SELECT FROM messaging_blasts WHERE id = ANY (%(blasts)s::uuid[]) ORDER BY id FOR NO KEY UPDATE",
                {"blasts": blasts},
            )
            sql.run(
                "UPDATE messaging_blasts SET isolated = %(isolated)s, hold_code = %(code)s::text, hold_detail = %(detail)s,"
                f" held_until = {held_until} WHERE id = ANY (%(blasts)s::uuid[])",
                setting | {"blasts": blasts},
            )


def isolate(channel: Channel, rail: Rail, lanes: Sequence[LaneKey]) -> None:
    """From now on each of these lanes goes out in a batch of its own: the next refusal names the lane."""
    _write(channel, rail, lanes, {"isolated": True})


def hold(channel: Channel, rail: Rail, lane: LaneKey, why: Failure, seconds: float = HOLD) -> None:
    """The lane waits; one of its sends tries again after `seconds`, until one is accepted."""
    values = {"isolated": True, "code": why.code or "refused", "detail": why.detail, "hold": seconds}
    _write(channel, rail, [lane], values)


def release(channel: Channel, rail: Rail, lane: LaneKey) -> None:
    """A batch of this lane was accepted: it is like any other again."""
    _write(channel, rail, [lane], {"isolated": False})
