"""Pick-up on an idle system: how long from the call of `submit` until the provider has read the request, one login code after
the other, each alone."""

from __future__ import annotations

from collections.abc import Iterator

from devtools.bench import goals
from devtools.bench.figures import spread
from devtools.bench.goals import Figure
from devtools.bench.lab import Lab
from devtools.bench.options import Options

_CODES = 200
#: Not counted: connections are made, plans prepared, code imported.
_WARM_UP = 10


def run(lab: Lab, options: Options) -> Iterator[Figure]:
    codes = 10 if options.quick else _CODES
    lab.prepare(rate=0, latency_ms=0)
    lab.inside.call("tenant", slug="idle")
    lab.ready()
    submitted: dict[str, float] = lab.inside.call("codes", slug="idle", count=_WARM_UP + codes)
    lab.wait_sent(len(submitted), 30)
    lab.audit(len(submitted))
    read = {line["tags"]["send_id"]: line["accepted_at"] for line in lab.stack.sandbox.log()}
    took = spread((read[send] - at) * 1e3 for send, at in list(submitted.items())[_WARM_UP:])
    ran = f"{codes} codes, one every quarter of a second, provider unlimited; submit called → request read"
    yield Figure("pickup", "p50", took.p50, "ms", ran, goals.PICKUP_P50_MS)
    yield Figure("pickup", "p95", took.p95, "ms", ran, goals.PICKUP_P95_MS)
    yield Figure("pickup", "p99", took.p99, "ms", ran)
