"""A thousand tenants with five marketing e-mails each, all queued, at ten requests a second: requests are what is scarce, so
they must be shared, not spent one a tenant."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from devtools.bench import goals
from devtools.bench.figures import physical_minimum
from devtools.bench.goals import Figure
from devtools.bench.lab import Lab
from devtools.bench.options import Options

_EACH = 5
_RATE = 10
_CAPACITY = 1 + 0.02 * _RATE


def run(lab: Lab, options: Options) -> Iterator[Figure]:
    tenants = 60 if options.quick else 1_000
    lab.prepare(rate=_RATE)
    yield from measure(lab, tenants, lambda each: lab.inside.call("singles", tenants=tenants, each=each))


def measure(lab: Lab, tenants: int, submit: Callable[[int], object]) -> Iterator[Figure]:
    """In a lab that is prepared for `_RATE`. `submit` submits so many sends of each of the tenants; nothing is sent before."""
    sends, least = tenants * _EACH, -(-tenants * _EACH // 100)
    lab.hold()
    try:
        submit(_EACH)
        lab.ready()
        time.sleep(1.0)  # two beats of the clock: hints, and a ticket
    finally:
        since = time.time()
        lab.release()
    lab.wait_sent(sends, 30 + sends / 10)
    lab.audit(sends)
    took = lab.sql("SELECT extract(epoch FROM max(accepted_at))::float8 FROM messaging_sends")[0][0] - since
    batches, requests = lab.sql(
        "SELECT count(*), sum(attempts) FROM messaging_batches WHERE rail = 'marketing' AND state = 'accepted'"
    )[0]
    ran = f"{tenants:,} tenants × {_EACH}, all queued, provider 10 requests/s, 50 ms"
    minimum = physical_minimum(least, _CAPACITY, _RATE)
    yield Figure(
        "small_tenants",
        "time ÷ physical minimum",
        took / minimum,
        "",
        f"{ran}; minimum ({least} − {_CAPACITY:g}) ÷ {_RATE} = {minimum:.2f} s",
        goals.SMALL_TENANTS,
        {"seconds": round(took, 3), "minimum": round(minimum, 3), "requests": int(requests)},
    )
    yield Figure("small_tenants", "time", took, "s", ran)
    yield Figure("small_tenants", "requests", float(requests), "", f"{ran}; {least} can hold them")
    yield Figure("small_tenants", "mean fill", sends / batches, "of 100", ran)
