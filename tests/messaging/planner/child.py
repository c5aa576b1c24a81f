"""Runs in a process of its own: plans, and tells each commit on standard output.

child.py plan <tenant id> <csv> <key>     one line a commit: the rows read
child.py memory <tenant id> <folder>      the peak of memory after 20,000 and after 200,000 rows, in MiB
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import django

django.setup()

from core.models import Tenant  # noqa: E402
from messaging.planner import Progress  # noqa: E402
from tests.messaging.planner.rig import plan, write_csv  # noqa: E402


def tell(progress: Progress) -> None:
    print(progress.rows, flush=True)  # noqa: T201


def peak_mib() -> float:
    # Not getrusage: its peak begins with what the process that forked this one held.
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]


def main(what: str, tenant_id: str, *arguments: str) -> None:
    tenant = Tenant.objects.get(pk=tenant_id)
    if what == "plan":
        path, key = arguments
        plan(tenant, path, idempotency_key=key, progress=tell)
        return
    for rows in (20_000, 200_000):
        result = plan(tenant, write_csv(Path(arguments[0]) / f"{rows}.csv", rows))
        assert result.planned == rows
        print(peak_mib(), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
