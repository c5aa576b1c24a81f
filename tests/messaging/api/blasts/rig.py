"""Speaks to the API about blasts, in the test's own process."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import Any

from core.models import Tenant
from messaging.channels.sealing import open_recipient
from messaging.models import Blast, BlastReject, BlastUpload, Send
from tests.messaging.tenant_rig import Speaker, error_of

URL = "/v1/messaging/blasts"
CSV, NDJSON = "text/csv", "application/x-ndjson"

#: The least that a blast must say.
BLAST: dict[str, Any] = {
    "category": "marketing",
    "from": "Shop <news@shop.example>",
    "subject": "Spring",
    "text": "Hello {{ name }}",
}


def people(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"to": f"person{i}@example.org", "variables": {"name": f"P{i}"}} for i in range(start, start + count)]


def csv_of(count: int, start: int = 0) -> bytes:
    rows = "".join(f"person{i}@example.org,P{i}\n" for i in range(start, start + count))
    return f"to,name\n{rows}".encode()


@dataclass
class Blasts:
    speaker: Speaker

    @classmethod
    def of(cls, tenant: Tenant) -> Blasts:
        return cls(Speaker.of(tenant))

    def post(self, path: str = "", body: object = None, **headers: str) -> Any:
        return self.speaker.post({} if body is None else body, f"{URL}{path}", **_named(headers))

    def create(self, key: str | None = None, **changes: object) -> Any:
        named = {name.rstrip("_"): value for name, value in changes.items()}
        body = {name: value for name, value in (BLAST | named).items() if value is not None}
        return self.post(body=body, **({} if key is None else {"Idempotency_Key": key}))

    def made(self, **changes: object) -> str:
        answer = self.create(**changes)
        assert answer.status_code == 201, answer.content
        return str(answer.json()["id"])

    def upload(self, blast: str, body: bytes, kind: str = CSV, query: str = "", **headers: str) -> Any:
        path = f"{URL}/{blast}/recipients{query}"
        given = self.speaker.headers(**_named(headers))
        empty = {} if body else {"CONTENT_TYPE": kind, "CONTENT_LENGTH": "0"}  # which the client would leave out
        return self.speaker.client.post(path, body, content_type=kind, headers=given, **empty)

    def get(self, path: str) -> Any:
        return self.speaker.client.get(f"{URL}{path}", headers=self.speaker.headers())

    def shown(self, blast: str) -> dict[str, Any]:
        answer = self.get(f"/{blast}")
        assert answer.status_code == 200, answer.content
        return dict(answer.json())

    def rejected(self, blast: str) -> list[list[str]]:
        answer = self.get(f"/{blast}/rejected")
        assert (answer.status_code, answer["Content-Type"]) == (200, "text/csv; charset=utf-8")
        return list(csv.reader(io.StringIO(b"".join(answer.streaming_content).decode())))


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def assert_adds_up(blast_id: str) -> Blast:
    """The invariant of every commit: the counts are those of the rows, and of the uploads together."""
    blast = Blast.objects.get(pk=blast_id)
    uploads = list(BlastUpload.objects.filter(blast=blast).order_by("number"))
    for name in ("rows_read", "planned", "duplicates", "rejected"):
        assert getattr(blast, name) == sum(getattr(upload, name) for upload in uploads), name
    assert blast.rows_read == blast.planned + blast.duplicates + blast.rejected
    assert blast.planned == Send.objects.filter(blast=blast).count()
    assert blast.rejected == BlastReject.objects.filter(blast=blast).count()
    return blast


def refused(answer: Any, status: int, code: str, field: str | None = None) -> dict[str, str]:
    """The error of an answer, which is the one that is expected."""
    error = error_of(answer)
    assert (answer.status_code, error["code"], error.get("field")) == (status, code, field), error
    return error


def told(answer: Any) -> tuple[int, ...]:
    """(upload, rows, added, duplicates, rejected) of a good answer to an upload."""
    assert answer.status_code == 200, answer.content
    body = answer.json()
    return tuple(body[name] for name in ("upload", "rows", "added", "duplicates", "rejected"))


def ndjson(*rows: Any) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def recipients() -> list[tuple[str, dict[str, Any]]]:
    """To whom all blasts go, opened, in the order in which it will be sent."""
    rows = Send.objects.order_by("id").values_list("id", "sealed")
    return [open_recipient(pk, bytes(sealed)) for pk, sealed in rows]
