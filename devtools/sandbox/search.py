"""The newest accepted e-mails first, a page at a time, with a bound on what one call looks through.

The server has one thread, and what it measures must not wait for a page: a batch that cannot hold what is looked for is
told by its bytes, without parsing it, and when a call has done its share it ends where it is and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from devtools.sandbox.accepted import AcceptedLog

#: What one call may spend, in bytes looked through: at most some 20 ms.
BUDGET = 16 * 1024 * 1024
#: What it costs beside that: a record, however short; parsing what may hold it.
_RECORD, _PARSING = 256, 10


@dataclass(frozen=True, slots=True)
class Found:
    """`older`: the cursor of the next page (sequence numbers below it), None at the end of the log.
    `cut`: the page is not full, and there may be more: the call had spent its budget."""

    emails: list[dict[str, Any]]
    older: int | None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """`recipient`: a part of an address, in either case of a–z. `send_id`: exactly the value of the tag `tag`."""

    recipient: str = ""
    send_id: str = ""
    tag: str = "send_id"

    def needles(self) -> list[bytes]:
        """What the JSON of a batch, in lower case, has in it if one of its e-mails fits."""
        return [orjson.dumps(text)[1:-1].lower() for text in (self.recipient, self.send_id) if text]

    def fits(self, row: list[Any]) -> bool:
        if self.send_id and row[3].get(self.tag) != self.send_id:
            return False
        part = self.recipient.encode().lower()
        return not part or any(part in address.encode().lower() for address in row[0])


def newest(log: AcceptedLog, count: int, wanted: Wanted, before: int | None = None) -> Found:
    """Up to `count` e-mails that fit, with a sequence number below `before`."""
    found: list[dict[str, Any]] = []
    needles = wanted.needles()
    spent = 0
    for batch in log.backwards(before):
        if spent > BUDGET:
            return Found(found, batch.first + batch.count, cut=True)
        spent += len(batch.rows) + _RECORD
        if needles:
            text = batch.rows.lower()
            if not all(needle in text for needle in needles):
                continue
        spent += len(batch.rows) * _PARSING
        rows = orjson.loads(batch.rows)
        for index in range(batch.count - 1, -1, -1):
            if (before is None or batch.first + index < before) and wanted.fits(rows[index]):
                if len(found) == count:
                    return Found(found, found[-1]["seq"])
                found.append(log.line(batch, index, rows[index]))
    return Found(found, None)
