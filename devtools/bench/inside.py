"""`python -m devtools.bench.inside`: what has to run with Django, in the environment of the lab's stack.

A line in is `[name, arguments]`, a line out `{"value": …}` or `{"error": …}`; the end of the input is the end of it.
`python -m devtools.bench.inside plan TENANT CSV` plans that one blast and tells what it took, in a process that did nothing else.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import django

django.setup()

from core.models import Tenant  # noqa: E402
from devtools.bench import seed, watch  # noqa: E402
from devtools.bench.hammer import hammer  # noqa: E402
from messaging.ledger import buckets  # noqa: E402
from messaging.planner import plan_blast  # noqa: E402

CALLS: Mapping[str, Callable[..., Any]] = {
    "forget": buckets.forget,
    "blast": seed.blast,
    "blasts": seed.blasts,
    "launch": seed.launch,
    "cancel": seed.cancel,
    "tenant": seed.tenant_id,
    "singles": seed.singles,
    "codes": seed.codes,
    "submit": seed.submit_all,
    "age": seed.age,
    "steps": watch.steps,
    "governor": hammer,
}


def serve(calls: Mapping[str, Callable[..., Any]] = CALLS) -> None:
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"value": calls[name](**arguments)}
        except Exception as error:  # noqa: BLE001 — told to the other end, which ends the run
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def plan(slug: str, csv: str) -> dict[str, float]:
    """Seconds, and the peak of this process's memory in MiB, from the CSV file to the launch."""
    tenant = Tenant.objects.get(slug=slug)
    before = _peak_mib()
    started = time.perf_counter()
    result = plan_blast(tenant, recipients=csv, **seed.message(slug))
    took = time.perf_counter() - started
    return {"planned": result.planned, "seconds": took, "peak_mib": _peak_mib(), "before_mib": before}


def _peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["plan"]:
        print(json.dumps(plan(*sys.argv[2:])))
    else:
        serve()
