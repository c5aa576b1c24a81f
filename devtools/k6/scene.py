"""The system as a profile needs it, and what it says afterwards: the bench's lab, with the demo's two tenants.

A is the tenant that blasts (or floods) and sends codes, B only sends codes.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from devtools.bench.lab import BenchFailed, Lab
from devtools.demo.evidence import spent_tokens
from devtools.demo.figures import Evidence, Figures, LedgerBatch, LedgerSend, compute
from devtools.demo.tenants import TENANTS, sender
from devtools.k6 import judge
from devtools.k6.script import Posted, Script

#: Requests a second that the provider takes.
RATE = 10
A, B = TENANTS
#: Before anything is counted: connections, the first batch.
WARM_SECONDS = 2.0
#: Until k6 has uploaded a million and sent its first code.
UPLOAD_SECONDS = 600.0
_DRAIN_SECONDS = 30.0
_MARK_SECONDS = 60.0
_SLUGS = {"A": A, "B": B}

#: A blast's sends that nobody claimed, thousands or a million, say nothing: they were not promised to be gone by now.
_SENDS = """
SELECT s.id::text, t.slug, s.category, s.rail, s.status, s.blast_id IS NOT NULL,
       extract(epoch FROM s.created_at)::float8, extract(epoch FROM s.accepted_at)::float8
FROM messaging_sends s JOIN core_tenants t ON t.id = s.tenant_id
WHERE s.blast_id IS NULL OR s.status NOT IN ('queued', 'cancelled')
"""
_BATCHES = (
    "SELECT rail, state, send_ids::text[], extract(epoch FROM created_at)::float8, attempts FROM messaging_batches"
)
_BLASTS = """
SELECT coalesce(sum(planned), 0)::bigint, extract(epoch FROM min(launched_at))::float8,
       (SELECT count(*) FROM messaging_sends WHERE blast_id IS NOT NULL)
FROM messaging_blasts
"""
_OPEN = "SELECT count(*) FROM messaging_sends WHERE blast_id IS NULL AND status IN ('scheduled', 'queued', 'sending')"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What a profile gets. `short`: small numbers, a few seconds, counts only. `results`: how its result files begin."""

    lab: Lab
    short: bool
    say: Say
    k6: Path
    results: str

    def size(self, full: int, short: int) -> int:
        return short if self.short else full

    def wait(self, seconds: float) -> None:
        """Let the traffic go on. Raises ProcessDied."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            self.lab.stack.check()
            time.sleep(min(1.0, left))


@dataclass(frozen=True, slots=True)
class Measured:
    """`values`: each figure of the profile's conditions. `ran`: what they were measured on."""

    values: dict[str, float]
    ran: str


@dataclass(slots=True)
class Traffic:
    """What is submitted, by k6 and here; the ids are written down."""

    run: Run
    env: dict[str, str]  # for k6: where to, and the two tenants' keys
    posted: list[Posted] = field(default_factory=list)
    submitted: dict[str, str] = field(default_factory=dict)  # send → tenant
    bursts: list[set[str]] = field(default_factory=list)
    scripts: int = 0
    failed_scripts: int = 0

    def script(self, name: str, **settings: float | str) -> Script:
        """A run of `k6/NAME.js`; with `keep` afterwards."""
        self.scripts += 1
        stack = self.run.lab.stack
        return Script(
            self.run.k6,
            name,
            logs=stack.data_dir / "logs",
            env=self.env | {key: str(value) for key, value in settings.items()},
            summary=Path(f"{self.run.results}-{name}{f'-{self.scripts}' if self.scripts > 1 else ''}.json"),
        )

    def keep(self, script: Script) -> None:
        """Wait for its end and write down its calls. Raises ProcessDied."""
        began, marks = time.monotonic(), 1

        def meanwhile() -> None:
            nonlocal marks
            self.run.lab.stack.check()
            if time.monotonic() - began >= marks * _MARK_SECONDS:
                sent = self.run.lab.stack.sandbox.stats()["emails_accepted"]
                self.run.say(f"{marks * _MARK_SECONDS:.0f} s; the provider has {sent:,} e-mails")
                marks += 1

        self.failed_scripts += not script.ended(meanwhile)
        posted = [dataclasses.replace(p, tenant=_SLUGS.get(p.tenant, p.tenant)) for p in script.posted()]
        self.posted += posted
        self.submitted |= {p.send_id: p.tenant for p in posted if p.send_id is not None}
        if burst := {p.send_id for p in posted if p.kind == "burst" and p.send_id is not None}:
            self.bursts.append(burst)

    def burst_at_once(self, tenant: str, codes: int) -> None:
        """In one `submit_many`, by a process that is not the web."""
        ids = self.submit(tenant, codes, "transactional")
        self.bursts.append(ids)

    def submit(self, tenant: str, sends: int, category: str) -> set[str]:
        ids = set(self.run.lab.inside.call("submit", slug=tenant, sends=sends, category=category))
        self.submitted |= dict.fromkeys(ids, tenant)
        return ids

    def steady(self) -> set[str]:
        """The ids of the codes that k6 sent at a constant rate."""
        return {p.send_id for p in self.posted if p.kind == "steady" and p.send_id is not None}


def open_scene(run: Run) -> Traffic:
    """An empty system with a limit of `RATE`, and both tenants."""
    run.lab.prepare(rate=RATE)
    stack = run.lab.stack
    keys: dict[str, str] = json.loads(stack.python("-m", "devtools.demo.tenants", str(RATE)))
    env = {"BASE_URL": stack.web_url, "SANDBOX_URL": stack.sandbox.url}
    for name, slug in (("A", A), ("B", B)):
        env |= {f"KEY_{name}": keys[slug], f"FROM_{name}": sender(slug)}
    run.lab.ready()
    return Traffic(run, env)


@contextmanager
def many_tenants(run: Run, count: int, prefix: str) -> Iterator[Path]:
    """So many tenants; the file with their keys, for `KEYS`."""
    path = run.lab.stack.data_dir / "keys.json"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    try:
        path.write_text(run.lab.stack.python("-m", "devtools.k6.tenants", str(count), prefix))
        yield path
    finally:
        path.unlink()


def drain(run: Run, seconds: float = _DRAIN_SECONDS) -> int:
    """Wait until no single send is open and no request is in flight; how many are open all the same."""
    deadline = time.monotonic() + seconds
    while (left := run.lab.sql(_OPEN)[0][0]) and time.monotonic() < deadline:
        run.lab.stack.check()
        time.sleep(0.1)
    with suppress(BenchFailed):  # counted below, as what is still open
        run.lab.wait_recorded()
    in_flight = run.lab.sql(
        "SELECT count(*) FROM messaging_batches WHERE state IN ('claimed', 'preparing', 'unknown')"
    )[0][0]
    return int(left or in_flight)


@dataclass(frozen=True, slots=True)
class Found:
    evidence: Evidence
    figures: Figures
    counts: dict[str, float]


def find(traffic: Traffic) -> Found:
    """Wait for what is still on its way, then ask ledger, governor and provider. Nothing may be sent any more."""
    still_open = drain(traffic.run)
    lab = traffic.run.lab
    ((planned, launched_at, rows),) = lab.sql(_BLASTS)
    log = [(line["tags"].get("send_id"), line["request"], line["accepted_at"]) for line in lab.stack.sandbox.log()]
    stats = lab.stack.sandbox.stats()
    evidence = Evidence(
        limit=RATE,
        recipients=planned,
        rejected=0,
        launched_at=launched_at or 0.0,
        submitted=traffic.submitted,
        refused=Counter(p.answer for p in traffic.posted if p.send_id is None),
        post_seconds=(),
        sends=[LedgerSend(*row) for row in lab.sql(_SENDS)],
        batches=[
            LedgerBatch(rail, state, tuple(ids), at, attempts) for rail, state, ids, at, attempts in lab.sql(_BATCHES)
        ],
        at_provider=[(send_id, request) for send_id, request, _ in log],
        requests=stats["requests_received"],
        too_many=stats["by_status"].get("429", 0),
        tokens=spent_tokens(lab.stack.redis_url),
        accepting={request: at for _, request, at in log},
    )
    figures = compute(evidence)
    counts = judge.counts(
        figures, rows_missing=planned - rows, still_open=still_open, failed_scripts=traffic.failed_scripts
    )
    return Found(evidence, figures, counts)
