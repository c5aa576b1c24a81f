"""The system as a profile needs it, and what it says afterwards: the bench's lab, with the demo's two tenants.

A is the tenant that blasts (or floods) and sends codes, B only sends codes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from devtools.bench.lab import BenchFailed, Lab
from devtools.bench.planning import write_list
from devtools.demo.evidence import spent_tokens
from devtools.demo.figures import Evidence, Figures, LedgerBatch, LedgerSend, compute
from devtools.demo.load import OtpLoad, Posted, refusals
from devtools.demo.options import OTPS_PER_SECOND
from devtools.demo.tenants import TENANTS, sender
from devtools.profiles import judge

#: Requests a second that the provider takes.
RATE = 10
A, B = TENANTS
#: Before anything is counted: connections, the first batch.
WARM_SECONDS = 2.0
_DRAIN_SECONDS = 30.0
_MARK_SECONDS = 60.0
_HTML = "<p>Dear {{ first_name }},</p><p>the spring list is here. Your code: <b>{{ code }}</b>.</p>"

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
    """What a profile gets. `short`: small numbers, a few seconds, counts only."""

    lab: Lab
    short: bool
    say: Say

    def size(self, full: int, short: int) -> int:
        return short if self.short else full

    def wait(self, seconds: float) -> None:
        """Let the traffic go on, with a word each minute. Raises ProcessDied."""
        began = time.monotonic()
        marks = 1
        while (gone := time.monotonic() - began) < seconds:
            self.lab.stack.check()
            if gone >= marks * _MARK_SECONDS:
                sent = self.lab.stack.sandbox.stats()["emails_accepted"]
                self.say(f"{gone:.0f} of {seconds:.0f} s; the provider has {sent:,} e-mails")
                marks += 1
            time.sleep(min(1.0, seconds - gone))


@dataclass(frozen=True, slots=True)
class Measured:
    """`values`: each figure of the profile's conditions. `ran`: what they were measured on."""

    values: dict[str, float]
    ran: str


@dataclass(slots=True)
class Traffic:
    """The two tenants' codes over HTTP, and whatever else was submitted, whose ids are written down here."""

    load: OtpLoad
    submitted: dict[str, str] = field(default_factory=dict)  # send → tenant
    bursts: set[str] = field(default_factory=set)

    def steady(self) -> set[str]:
        """The ids of the codes that the schedule sent."""
        return {p.send_id for p in self.load.posted() if p.send_id is not None} - self.bursts


def open_scene(run: Run) -> Traffic:
    """An empty system with a limit of `RATE`, both tenants, and codes that wait for `load.start()`."""
    run.lab.prepare(rate=RATE)
    keys: dict[str, str] = json.loads(run.lab.stack.python("-m", "devtools.demo.tenants", str(RATE)))
    return Traffic(OtpLoad(run.lab.stack.web_url, keys, per_second=OTPS_PER_SECOND))


def plan(run: Run, recipients: int) -> str:
    """A's blast, planned by the command that an operator uses, with its progress; not launched. Its id."""
    path = run.lab.stack.data_dir / "recipients.csv"
    write_list(path, recipients)
    run.say(f"planning a blast of {recipients:,}")
    arguments = ("--from", sender(A), "--subject", "{{ first_name }}, our spring list", "--html-text", _HTML)
    run.lab.stack.manage(
        *("blast", "--tenant", A, "--csv", str(path), *arguments, "--no-launch"),
        capture=False,
        env={"LOG_LEVEL": "WARNING"},
    )
    path.unlink()
    ((blast, planned),) = run.lab.sql("SELECT id::text, planned FROM messaging_blasts")
    if planned != recipients:
        raise BenchFailed(f"{planned:,} of {recipients:,} rows were planned.")
    return str(blast)


def burst_at_once(run: Run, traffic: Traffic, tenant: str, codes: int) -> set[str]:
    """In one `submit_many`, by a process that is not the web; the ids."""
    ids = set(run.lab.inside.call("submit", slug=tenant, sends=codes, category="transactional"))
    traffic.submitted |= dict.fromkeys(ids, tenant)
    traffic.bursts |= ids
    return ids


def burst_over_http(traffic: Traffic, tenant: str, codes: int) -> set[str]:
    """Each a POST of its own; the ids of those that were answered 202 (others count as refused)."""
    ids = {p.send_id for p in traffic.load.burst(tenant, codes) if p.send_id is not None}
    traffic.bursts |= ids
    return ids


def drain(run: Run, seconds: float = _DRAIN_SECONDS) -> int:
    """Wait until no single send is open and no request is in flight; how many are open all the same."""
    deadline = time.monotonic() + seconds
    while (left := run.lab.sql(_OPEN)[0][0]) and time.monotonic() < deadline:
        run.lab.stack.check()
        time.sleep(0.1)
    with suppress(BenchFailed):  # counted below, as what is still open
        run.lab.wait_recorded()
    in_flight = run.lab.sql("SELECT count(*) FROM messaging_batches WHERE state IN ('claimed', 'unknown')")[0][0]
    return int(left or in_flight)


@dataclass(frozen=True, slots=True)
class Found:
    evidence: Evidence
    figures: Figures
    counts: dict[str, float]


def find(run: Run, posted: Iterable[Posted] = (), submitted: dict[str, str] | None = None) -> Found:
    """Wait for what is still on its way, then ask ledger, governor and provider. Nothing may be sent any more."""
    still_open = drain(run)
    lab, posted = run.lab, list(posted)
    ((planned, launched_at, rows),) = lab.sql(_BLASTS)
    log = [(line["tags"].get("send_id"), line["request"], line["accepted_at"]) for line in lab.stack.sandbox.log()]
    stats = lab.stack.sandbox.stats()
    evidence = Evidence(
        limit=RATE,
        recipients=planned,
        rejected=0,
        launched_at=launched_at or 0.0,
        submitted={p.send_id: p.tenant for p in posted if p.send_id is not None} | (submitted or {}),
        refused=refusals(posted),
        post_seconds=[p.seconds for p in posted],
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
    return Found(evidence, figures, judge.counts(figures, rows_missing=planned - rows, still_open=still_open))
