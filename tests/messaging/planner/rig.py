"""What the planner's tests share: lists, a plan with its least arguments, and what came of it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.db import connection

from core.models import Tenant
from messaging.channels.sealing import open_recipient
from messaging.models import Blast, BlastReject, Send
from messaging.planner import PlanResult, plan_blast

ROOT = Path(__file__).resolve().parents[3]


def csv_file(*lines: str, end: str = "\n") -> io.BytesIO:
    return io.BytesIO("".join(line + end for line in lines).encode())


def people(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"to": f"person{i}@example.org", "variables": {"name": f"P{i}"}} for i in range(start, start + count)]


def plan(tenant: Tenant, recipients: Any, **values: Any) -> PlanResult:
    given = {"from_": f"News <news@{tenant.slug}.org>", "subject": "News", "text": "Hello {{ name }}"} | values
    return plan_blast(tenant, recipients=recipients, **given)


def rejects(blast_id: UUID) -> list[tuple[int, str]]:
    return list(BlastReject.objects.filter(blast_id=blast_id).order_by("line").values_list("line", "code"))


def recipients_of(blast_id: UUID) -> list[tuple[str, dict[str, Any]]]:
    """To whom the blast goes, opened, in the order in which it will be sent."""
    rows = Send.objects.filter(blast_id=blast_id).order_by("id").values_list("id", "sealed")
    return [open_recipient(pk, bytes(sealed)) for pk, sealed in rows]


def assert_adds_up(blast_id: UUID) -> Blast:
    """The invariant of every commit: the counts are those of the rows."""
    blast = Blast.objects.get(pk=blast_id)
    assert blast.rows_read == blast.planned + blast.duplicates + blast.rejected
    assert blast.planned == Send.objects.filter(blast=blast).count()
    assert blast.rejected == BlastReject.objects.filter(blast=blast).count()
    return blast


def start_child(*arguments: object, **streams: Any) -> subprocess.Popen[str]:
    """`child.py` as a process of its own, on this run's test database."""
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "LOG_LEVEL": "WARNING",
        "COLUMNS": "200",
    }
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        **streams,
    )


def write_csv(path: Path, count: int, extra: Mapping[int, str] | None = None) -> Path:
    """`count` good rows; `extra` puts a line of its own behind the row of that number."""
    with path.open("w") as file:
        file.write("to,name\n")
        for i in range(count):
            file.write(f"person{i}@example.org,P{i}\n")
            if extra and i in extra:
                file.write(extra[i] + "\n")
    return path
