"""Use of a limit of ten requests a second under a backlog that never ends, with login codes at four a second beside it: against
a provider that counts fixed one-second windows, and against one with a token bucket."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from devtools.bench import goals
from devtools.bench.figures import per_thousand, spread, use_of_limit
from devtools.bench.goals import Figure
from devtools.bench.lab import BenchFailed, Lab
from devtools.bench.options import Options
from devtools.demo.load import OtpLoad
from devtools.demo.options import OTPS_PER_SECOND

_RATE = 10
#: Of the run's begin that is not counted: the first batch, connections, the bucket's first token.
_START_SECONDS = 2.0
_WORDS = {"fixed": "fixed one-second windows", "bucket": "a token bucket"}


def run(lab: Lab, options: Options) -> Iterator[Figure]:
    for window in _WORDS:
        yield from _against(lab, window, options.seconds)


def _against(lab: Lab, window: str, seconds: float) -> Iterator[Figure]:
    lab.prepare(rate=_RATE, window=window)
    keys: dict[str, str] = json.loads(lab.stack.python("-m", "devtools.demo.tenants", str(_RATE)))
    blaster = next(iter(keys))
    backlog = int((_START_SECONDS + seconds + 10) * _RATE * 100)
    blast = lab.inside.call("blast", slug=blaster, parts=[["real", backlog]])
    lab.ready()
    load = OtpLoad(lab.stack.web_url, keys, per_second=OTPS_PER_SECOND)
    lab.inside.call("launch", blast_ids=[blast])
    load.start()
    try:
        time.sleep(_START_SECONDS)
        start = time.time()
        time.sleep(seconds)
        end = time.time()
        stats = lab.stack.sandbox.stats()
    finally:
        load.stop()
        lab.stack.check()
    lab.inside.call("cancel", blast_ids=[blast])
    lab.wait_recorded()
    requests, too_many = stats["requests_received"], stats["by_status"].get("429", 0)
    use = use_of_limit(stats["per_second"], _RATE, start, end)
    codes, fill = _codes(lab, start, end), _fill(lab, start, end)
    ran = f"{_WORDS[window]}, {seconds:.0f} s, 10 requests/s, 50 ms, a blast and 4 login codes/s"
    name = f"against {_WORDS[window]}"
    more = {"requests": requests, "too_many": too_many}
    yield Figure("limit", f"use of the limit, {name}", use * 100, "%", ran, goals.USE, more)
    yield Figure(
        "limit", f"429s, {name}", per_thousand(too_many, requests), "of 1,000 requests", ran, goals.TOO_MANY, more
    )
    yield Figure("limit", f"login codes p95, {name}", spread(codes).p95 * 1e3, "ms", ran, goals.OTP_P95_MS)
    yield Figure("limit", f"login codes p99, {name}", spread(codes).p99 * 1e3, "ms", ran, goals.OTP_P99_MS)
    yield Figure("limit", f"fill, {name}", fill, "of 100", ran, goals.FILL)


def _codes(lab: Lab, start: float, end: float) -> list[float]:
    rows = lab.sql(
        "SELECT extract(epoch FROM accepted_at - created_at)::float8 FROM messaging_sends WHERE category = 'transactional'"
        " AND accepted_at IS NOT NULL AND created_at BETWEEN to_timestamp(%s) AND to_timestamp(%s)",
        start,
        end,
    )
    if not rows:
        raise BenchFailed("No login code was accepted.")
    return [seconds for (seconds,) in rows]


def _fill(lab: Lab, start: float, end: float) -> float:
    ((fill,),) = lab.sql(
        "SELECT coalesce(avg(cardinality(send_ids)), 0)::float8 FROM messaging_batches WHERE rail = 'marketing'"
        " AND state = 'accepted' AND created_at BETWEEN to_timestamp(%s) AND to_timestamp(%s)",
        start,
        end,
    )
    return float(fill)
