"""A tenant's sends, newest first, a page at a time, at a flat cost.

A page looks at most at `SCAN` sends. What the index does not narrow down is sifted from those, so a page may hold fewer
sends than asked for, or none, and still say where the next one begins: nothing is skipped, and no call is slow.

Which index serves what:

* no status, or `queued`: `messaging_sends_tenant`. It does not hold the status, so what a claimed backlog leaves behind
  in it until the next vacuum lies beside the living entry and not in front of it. Queued ones are looked for no further
  back than the tenant's oldest lane with open sends.
* any other status but `sending`: `messaging_sends_tenant_status`, which has no entry for the two through which each send
  passes on its way.
* `sending`: the open batches name them.
* a recipient: single sends by `messaging_sends_tenant_single`; of each blast at most one send, found by the unique
  index that keeps recipients apart. An index over the recipients of blasts would cost a quarter of each claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction

from core.db.cursor import ledger_cursor
from messaging.domain.lifecycle import OPEN_BATCH, SendStatus
from messaging.domain.rails import PRIORITY_OF, RAIL_OF, Category, Channel

#: What a page tells of a send.
COLUMNS = (
    *("id", "status", "channel", "category", "rail", "created_at", "not_before", "expires_at", "attempts"),
    *("accepted_at", "provider_id", "error_code", "error_detail", "blast_id"),
)
#: Sends that one page looks at.
SCAN = 5_000
#: Blasts in which one page looks for a recipient.
BLASTS = 500
#: How far the time in an id (of the host that made it) may be from `created_at` (the database's).
SLACK = timedelta(seconds=5)
#: Statuses without an entry in `messaging_sends_tenant_status`.
PASSING = (SendStatus.QUEUED, SendStatus.SENDING)

_FIRST, _LAST = UUID(int=0), UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFilter:
    """The filters; None is any. `created_after` is the first moment that counts, `created_before` the first that does not."""

    tenant: int
    status: SendStatus | None = None
    category: Category | None = None
    blast: UUID | None = None
    fingerprint: bytes | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """`rows` by the names of `COLUMNS`. `position`: the next page begins behind it; None: there is none."""

    rows: list[dict[str, Any]]
    position: UUID | None


# The plan must be the index of the tenant, in its order, whatever the planner's idea of one tenant's share in the ledger.
# The primary key offers itself, to be walked over everybody's sends, or to be read and sorted. The first is kept out by an
# order that only the lists' indexes have (ids are never null, and the planner does not know), the second by the setting.
_NEWEST = "DESC NULLS LAST"
IN_ORDER = "SELECT set_config('enable_sort', 'off', true)"
_SHOWN = ", ".join(f"s.{name}" for name in COLUMNS)
_KEPT = ", ".join(f"r.{name}" for name in COLUMNS)
_FITS = """(%(blast)s::uuid IS NULL OR r.blast_id = %(blast)s)
      AND (%(status)s::text IS NULL OR r.status = %(status)s)
      AND (%(category)s::text IS NULL OR r.category = %(category)s)
      AND r.created_at >= coalesce(%(created_after)s::timestamptz, '-infinity')
      AND r.created_at < coalesce(%(created_before)s::timestamptz, 'infinity')"""
_RANGE = "s.id >= %(first)s AND s.id < %(before)s"
_STATUS = f"s.status = %(status)s AND s.status NOT IN ('{PASSING[0]}', '{PASSING[1]}')"


def _sifted(source: str, key: str = "id") -> str:
    """The first `rows` sends of `source` (at most `SCAN`, in their order) that fit, and in any case the last of `SCAN`."""
    return f"""
SELECT {_KEPT}, r.{key} AS position, r.n = {SCAN} AS full, ({_FITS}) AS fits
FROM (SELECT q.*, row_number() OVER (ORDER BY q.{key} {_NEWEST}) AS n FROM ({source}) q) r
WHERE r.n = {SCAN} OR ({_FITS})
ORDER BY r.{key} {_NEWEST} LIMIT %(rows)s
"""


def _by_tenant(categories: Sequence[Category], narrowed: str) -> str:
    branches = [
        f"(SELECT {_SHOWN} FROM messaging_sends s WHERE s.tenant_id = %(tenant)s AND s.priority = {PRIORITY_OF[category]}"
        f" {narrowed} AND {_RANGE} ORDER BY s.id {_NEWEST} LIMIT {SCAN})"
        for category in categories
    ]
    merged = f"SELECT * FROM ({' UNION ALL '.join(branches)}) s ORDER BY s.id {_NEWEST} LIMIT {SCAN}"
    return _sifted(merged)


_CATEGORIES: dict[Category | None, Sequence[Category]] = {None: tuple(Category)} | {c: (c,) for c in Category}
ANY_STATUS = {category: _by_tenant(chosen, "") for category, chosen in _CATEGORIES.items()}
ONE_STATUS = {category: _by_tenant(chosen, f"AND {_STATUS}") for category, chosen in _CATEGORIES.items()}

_OPEN = ", ".join(f"'{state}'" for state in sorted(OPEN_BATCH))
IN_FLIGHT = _sifted(
    f"""
    SELECT {_SHOWN}
    FROM (SELECT DISTINCT unnest(send_ids) AS id FROM messaging_batches WHERE state IN ({_OPEN})) b
    CROSS JOIN LATERAL (SELECT * FROM messaging_sends s WHERE s.id = b.id OFFSET 0) s
    WHERE s.tenant_id = %(tenant)s AND s.status = 'sending' AND {_RANGE}
    ORDER BY s.id {_NEWEST} LIMIT {SCAN}"""
)

# In the order of single sends and blasts, for a blast has one send to a recipient. `edge`: the last blast looked into, if
# there may be more; what lies before it is left to the next page.
RECIPIENT = f"""
WITH blasts AS MATERIALIZED (
    SELECT b.id FROM messaging_blasts b
    WHERE b.tenant_id = %(tenant)s AND b.id >= %(first)s AND b.id < %(before)s ORDER BY b.id DESC LIMIT {BLASTS}
), edge AS MATERIALIZED (
    SELECT CASE WHEN (SELECT count(*) FROM blasts) = {BLASTS} THEN (SELECT id FROM blasts ORDER BY id LIMIT 1) END AS id
)
SELECT e.id, f.*
FROM edge e LEFT JOIN LATERAL ({
    _sifted(
        f'''
    (SELECT {_SHOWN}, s.id AS key FROM messaging_sends s
     WHERE s.tenant_id = %(tenant)s AND s.fingerprint = %(fingerprint)s AND s.blast_id IS NULL AND {_RANGE}
       AND s.id >= coalesce(e.id, %(single)s) AND s.id >= %(single)s
     ORDER BY s.id {_NEWEST} LIMIT {SCAN})
    UNION ALL
    SELECT {_SHOWN}, b.id AS key
    FROM blasts b CROSS JOIN LATERAL (
        SELECT * FROM messaging_sends s WHERE s.blast_id = b.id AND s.fingerprint = %(fingerprint)s OFFSET 0
    ) s
    ORDER BY key {_NEWEST} LIMIT {SCAN}''',
        key="key",
    )
}) f ON true
ORDER BY f.position DESC
"""

_DUE_LANES = tuple((channel, RAIL_OF[category], PRIORITY_OF[category]) for channel in Channel for category in Category)
OLDEST_OPEN = (
    "SELECT s.id FROM (\n"
    + "\nUNION ALL\n".join(
        f"(SELECT s.id FROM messaging_sends s WHERE s.channel = '{channel}' AND s.rail = '{rail}' AND s.priority = {priority}"
        " AND s.tenant_id = %(tenant)s AND s.status = 'queued' AND s.blast_id IS NULL ORDER BY s.id LIMIT 1)"
        for channel, rail, priority in _DUE_LANES
    )
    + "\nUNION ALL\n"
    "(SELECT b.id FROM messaging_blasts b WHERE b.finished_at IS NULL AND b.tenant_id = %(tenant)s ORDER BY b.id LIMIT 1)\n"
    ") s ORDER BY s.id LIMIT 1"
)
_BLAST = "SELECT launched_at FROM messaging_blasts WHERE id = %(blast)s AND tenant_id = %(tenant)s"


def page_of(wanted: SendFilter, *, before: UUID | None, limit: int) -> Page | None:
    """Up to `limit` sends of the tenant behind the position `before`. None: the tenant has no such blast."""
    first, last = _FIRST, before or _LAST
    if wanted.created_after:
        first = _floor(wanted.created_after - SLACK)
    if wanted.created_before:
        last = min(last, _floor(wanted.created_before + SLACK))
    with transaction.atomic(), ledger_cursor() as sql:
        sql.run(IN_ORDER)
        if wanted.blast:
            found = sql.one(_BLAST, {"blast": wanted.blast, "tenant": wanted.tenant})
            if found is None:
                return None
            if wanted.fingerprint is None:
                # A blast's sends are made between it and its launch.
                first = max(first, _floor(_time(wanted.blast) - SLACK))
                last = min(last, _floor(found[0] + SLACK)) if found[0] else last
        if wanted.status is SendStatus.QUEUED and wanted.fingerprint is None:
            oldest = sql.one(OLDEST_OPEN, {"tenant": wanted.tenant})
            if oldest is None:
                return Page([], None)
            first = max(first, _floor(_time(oldest[0]) - SLACK))
        parameters = {
            "tenant": wanted.tenant,
            "status": wanted.status,
            "category": wanted.category,
            "blast": wanted.blast,
            "created_after": wanted.created_after,
            "created_before": wanted.created_before,
            "first": first,
            "before": last,
            "rows": limit + 1,
        }
        if wanted.fingerprint is not None:
            return _recipient(sql.all(RECIPIENT, parameters | _narrow(wanted, first, last)), limit)
        return _cut(sql.all(_statement(wanted), parameters), limit)


def _statement(wanted: SendFilter) -> str:
    if wanted.status is SendStatus.SENDING:
        return IN_FLIGHT
    by_category = ANY_STATUS if wanted.status in (None, SendStatus.QUEUED) else ONE_STATUS
    return by_category[wanted.category]


def _narrow(wanted: SendFilter, first: UUID, last: UUID) -> dict[str, Any]:
    """Bounds for a recipient. A blast may be older than its send, so time bounds single sends only from below."""
    bounds: dict[str, Any] = {"fingerprint": wanted.fingerprint, "single": first, "first": _FIRST, "before": last}
    if wanted.blast:
        bounds |= {"first": wanted.blast, "before": min(last, UUID(int=wanted.blast.int + 1))}
    return bounds


def _recipient(found: Sequence[Sequence[Any]], limit: int) -> Page:
    page = _cut([row for _, *row in found if row[0] is not None], limit)
    return page if page.position else Page(page.rows, found[0][0])


def _cut(found: Sequence[Sequence[Any]], limit: int) -> Page:
    """The page in what a sifting statement answered: rows, and behind their columns position, full and fits."""
    kept = [row for row in found if row[-1]]
    if len(kept) > limit:
        return Page(_named(kept[:limit]), kept[limit - 1][-3])
    return Page(_named(kept), next((row[-3] for row in found if row[-2]), None))


def _named(rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=False)) for row in rows]


def _floor(moment: datetime) -> UUID:
    """The smallest id (UUIDv7) that can be made at `moment`."""
    return UUID(int=max(0, int(moment.timestamp() * 1000)) << 80)


def _time(pk: UUID) -> datetime:
    return datetime.fromtimestamp((pk.int >> 80) / 1000, UTC)
