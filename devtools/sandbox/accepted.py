"""What was accepted: one compact record per request, from which ids, log lines and look-ups are derived.

Lean on purpose, since a million e-mails must fit beside the system under test: the rows of a request are one blob of
JSON, ids are computed from the sequence number, and only the send ids are kept as objects of their own (exact, not
hashed: what finds doubles must not guess).
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from devtools.sandbox.validation import recipients

ItemErrors = list[dict[str, Any]]

_PRESET_EVENTS = {"bounced": "bounced", "complained": "complained"}  # test addresses at resend.dev


@dataclass(slots=True)
class Batch:
    first: int  # sequence number of the first e-mail; 1 is the first of all
    count: int
    at: float  # epoch seconds
    request: int  # number of the request, in order of arrival
    key: str | None
    rows: bytes  # JSON [[to, from, subject, tags(, body)], …]
    errors: ItemErrors | None  # of the items that a permissive batch left out


class AcceptedLog:
    def __init__(self, send_id_tag: str, *, keep_bodies: bool) -> None:
        self._tag, self._keep_bodies = send_id_tag, keep_bodies
        # Shaped like a random UUID, the sequence number in its last group. New with every reset: old ids are unknown.
        run = secrets.token_hex(9)
        self._prefix = f"{run[:8]}-{run[8:12]}-4{run[12:15]}-8{run[15:18]}-"
        self._batches: list[Batch] = []
        self._firsts: list[int] = []
        self._seen: set[str] = set()
        self.total = 0
        self.untagged = 0
        self.again: dict[str, int] = {}  # send id → how often it was accepted after the first time

    @property
    def distinct(self) -> int:
        return len(self._seen)

    @property
    def batches(self) -> int:
        return len(self._batches)

    def add(
        self, items: list[dict[str, Any]], *, at: float, request: int, key: str | None, errors: ItemErrors | None
    ) -> Batch:
        # Copied, because what orjson returns keeps the spare room it was written into: 4 KB for a row of 100 bytes.
        rows = bytes(memoryview(orjson.dumps([self._row(item) for item in items])))
        batch = Batch(self.total + 1, len(items), at, request, key, rows, errors)
        if items:  # a permissive batch may have left out all of its items
            self._batches.append(batch)
            self._firsts.append(batch.first)
            self.total += len(items)
        return batch

    def ids(self, batch: Batch) -> list[str]:
        return [f"{self._prefix}{seq:012x}" for seq in range(batch.first, batch.first + batch.count)]

    def find(self, email_id: str) -> dict[str, Any] | None:
        """The answer to `GET /emails/{id}`, or None."""
        seq = self._sequence(email_id)
        if seq is None:
            return None
        line = self._at(seq)
        local, _, domain = line["to"][0].rpartition("@")
        event = _PRESET_EVENTS.get(local.partition("+")[0]) if domain == "resend.dev" else None
        return {
            "object": "email",
            "id": email_id,
            "to": line["to"],
            "from": line["from"],
            "subject": line["subject"],
            "created_at": datetime.fromtimestamp(line["accepted_at"], UTC).isoformat(),
            "html": line.get("html"),
            "text": line.get("text"),
            "tags": [{"name": name, "value": value} for name, value in line["tags"].items()],
            "last_event": event or "delivered",
        }

    def lines(self, after: int = 0) -> Iterator[bytes]:
        """NDJSON of every e-mail whose sequence number is above `after`, a batch at a time, up to the present one."""
        end = len(self._batches)
        for index in range(max(0, bisect_right(self._firsts, after + 1) - 1), end):
            batch = self._batches[index]
            rows = enumerate(orjson.loads(batch.rows))
            yield b"".join(
                orjson.dumps(self.line(batch, n, row), option=orjson.OPT_APPEND_NEWLINE)
                for n, row in rows
                if batch.first + n > after
            )

    def backwards(self, before: int | None = None) -> Iterator[Batch]:
        """The batches with an e-mail whose sequence number is below `before`, newest first."""
        end = len(self._batches) if before is None else bisect_right(self._firsts, before - 1)
        return (self._batches[index] for index in range(end - 1, -1, -1))

    def email(self, email_id: str) -> dict[str, Any] | None:
        """The e-mail as `lines` tells it."""
        seq = self._sequence(email_id)
        return None if seq is None else self._at(seq)

    def _row(self, item: dict[str, Any]) -> list[Any]:
        tags = {tag["name"]: tag["value"] for tag in item.get("tags") or ()}
        send_id = tags.get(self._tag)
        if send_id is None:
            self.untagged += 1
        elif send_id in self._seen:
            self.again[send_id] = self.again.get(send_id, 0) + 1
        else:
            self._seen.add(send_id)
        row: list[Any] = [recipients(item), item["from"], item["subject"], tags]
        if self._keep_bodies:
            row.append({field: item[field] for field in ("html", "text", "headers", "reply_to") if item.get(field)})
        return row

    def _at(self, seq: int) -> dict[str, Any]:
        batch = self._batches[bisect_right(self._firsts, seq) - 1]
        return self.line(batch, seq - batch.first, orjson.loads(batch.rows)[seq - batch.first])

    def line(self, batch: Batch, index: int, row: list[Any]) -> dict[str, Any]:
        seq = batch.first + index
        line = {
            "seq": seq,
            "id": f"{self._prefix}{seq:012x}",
            "to": row[0],
            "from": row[1],
            "subject": row[2],
            "tags": row[3],
            "idempotency_key": batch.key,
            "request": batch.request,
            "accepted_at": batch.at,
        }
        return line | row[4] if len(row) > 4 else line

    def _sequence(self, email_id: str) -> int | None:
        if not email_id.startswith(self._prefix):
            return None
        digits = email_id[len(self._prefix) :]
        seq = int(digits, 16) if len(digits) == 12 and all(c in "0123456789abcdef" for c in digits) else 0
        return seq if 1 <= seq <= self.total else None
