"""The run: everything up, load and faults at once, then peace until nothing is open, then the reckoning."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from random import Random
from typing import Any

import requests
from rich.console import Console

from devtools.bench.remote import Remote
from devtools.bench.run import FAILED, about, outcome, say
from devtools.chaos import report
from devtools.chaos.driver import Driver
from devtools.chaos.evidence import Ledger, all_fenced_out, collect
from devtools.chaos.faults import Scene
from devtools.chaos.judge import Evidence, counts
from devtools.chaos.load import Load
from devtools.chaos.options import AT_MOST_ONCE, Options
from devtools.chaos.orders import TENANTS, orders, rate
from devtools.chaos.schedule import plan
from devtools.stack import Stack

#: Shares of the minutes: faults begin and end within the first, load goes on a little longer; the rest is for what is left.
_FAULTS, _LOAD = 0.74, 0.78
#: Seconds beyond the minutes until what is open counts as stuck: leases, back-offs, a busy machine.
_PATIENCE = 150.0
#: Between two looks at what is open; when only that is waited for.
_LOOK_SECONDS, _PEACE_SECONDS = 5.0, 0.5
_APPLICATIONS = 2
_ADAPTER = {"STACK_EMAIL_ADAPTER": "devtools.chaos.adapter.AtMostOnceAdapter"}


def run(options: Options, console: Console | None = None) -> int:
    """The exit code (see `--help`)."""
    console = console or Console()
    code = 0

    def all_of_it() -> None:
        nonlocal code
        code = _Run(options, console).all()

    return outcome(all_of_it, "The chaos", options.data_dir, console) or code


class _Run:
    def __init__(self, options: Options, console: Console) -> None:
        self._options = options
        self._console = console
        self._orders = orders(options.seed, options.sends, options.seconds * _LOAD)

    def all(self) -> int:
        options = self._options
        planned = plan(options.seed, options.minutes, options.seconds * _FAULTS)
        limit = rate(self._orders, options.seconds * _LOAD)
        self._say(
            f"Seed {options.seed}: {options.sends:,} sends in {len(self._orders):,} submits, {len(planned)} faults,"
            f" {options.minutes:g} minutes, a limit of {limit} requests/s, {options.confirmation}"
        )
        at_most_once = options.confirmation == AT_MOST_ONCE
        stack = Stack(
            data_dir=options.data_dir,
            sandbox_flags=["--rate", str(limit), "--latency-ms", "50"],
            workers=2,
            env=_ADAPTER if at_most_once else {},
        )
        with ExitStack() as running:
            running.enter_context(stack)
            logs = stack.supervisor.logs
            applications = [
                running.enter_context(Remote(stack.env, logs / f"application-{n}.log", "devtools.chaos.inside"))
                for n in range(_APPLICATIONS)
            ]
            keys = applications[0].call("set_up", rate=limit, slugs=TENANTS)
            load = Load(self._orders, stack.web_url, keys, applications)
            running.callback(load.stop)
            driver = Driver(Scene(stack, Random(options.seed + 2)), planned, lambda text: self._say(f"  {text}"))
            running.callback(driver.close)
            ledger = running.enter_context(Ledger(stack.database_url))
            since = time.time()
            load.start()
            self._until_quiet(stack, driver, load, ledger)
            took = time.time() - since
            load.stop()
            driver.close()
            evidence = collect(stack, ledger, load.submitted)
            rows = report.timeline(driver.happened, evidence, since, options.seconds * _LOAD)
            figures = self._figures(stack, driver, load, took)
        return self._reckoning(evidence, rows, figures)

    def _until_quiet(self, stack: Stack, driver: Driver, load: Load, ledger: Ledger) -> None:
        """Until nothing is open, or that takes too long: then it is counted as what it is."""
        began = looked = told = time.monotonic()
        while (now := time.monotonic()) < began + self._options.seconds + _PATIENCE:
            driver.step()
            at_peace = not driver.busy and not load.left
            if now < looked + (_PEACE_SECONDS if at_peace else _LOOK_SECONDS):
                continue
            looked, found = now, ledger.look()
            if now >= told + _LOOK_SECONDS:
                told = now
                self._tell(now - began, stack, driver, load, found)
            if at_peace and found == (0, 0):
                return

    def _tell(self, elapsed: float, stack: Stack, driver: Driver, load: Load, found: tuple[int, int] | None) -> None:
        try:
            accepted = f"{stack.sandbox.stats()['emails_accepted']:,}"
        except requests.ConnectionError:
            accepted = "?"
        still = "?" if found is None else f"{found[0]:,}"
        now = ", ".join(driver.active()) or "–"
        self._say(
            f"{elapsed:6.1f} s  accepted {accepted} of {self._options.sends:,}, open in the ledger {still},"
            f" submits left {load.left:,}; now: {now}"
        )

    def _figures(self, stack: Stack, driver: Driver, load: Load, took: float) -> dict[str, Any]:
        stats = stack.sandbox.stats()
        return {
            "seconds": round(took, 1),
            "submits": len(load.submitted),
            "tries": sum(one.tries for one in load.submitted),
            "tried again": dict(load.again.most_common()),
            "requests": stats["requests_received"],
            "answers": stats["by_status"],
            "replays": stats["replays"],
            "fenced out": all_fenced_out(stack),
            "died by themselves": dict(driver.deaths),
        }

    def _reckoning(self, evidence: Evidence, rows: Sequence[report.Row], figures: dict[str, Any]) -> int:
        allowed = self._options.confirmation == AT_MOST_ONCE
        found = counts(evidence, ambiguous_allowed=allowed)
        wrong = {name: count for name, count in found.items() if count}
        unresolved = [send for send in evidence.sends if send.status == "ambiguous"]
        self._say("")
        for line in report.lines(rows):
            self._say(line)
        self._say("")
        for name, value in figures.items():
            self._say(f"{name}: {_shown(value)}")
        sent = sum(send.status == "sent" for send in evidence.sends)
        self._say(f"sent: {sent:,} of {self._options.sends:,}; accepted by the provider: {len(evidence.accepted):,}")
        if unresolved:
            self._say(f"ambiguous: {len(unresolved):,}")
            for line in report.ambiguous_lines(unresolved):
                self._say(line)
        for why, count in evidence.refused.items():
            self._say(f"refused {count} ×: {why}")
        if evidence.audit:
            self._say(evidence.audit)
        for name, count in wrong.items():
            self._say(f"{name}: {count:,}")
        verdict = "FAILED" if wrong else f"{len(found)} counts that must be 0 are 0: nothing lost, nothing doubled"
        self._say(f"Seed {self._options.seed}: {verdict}.")
        if self._options.json:
            more = {"figures": figures, "counts": found, "wrong": wrong, "sent": sent}
            ambiguous = {"ambiguous": [asdict(send) for send in unresolved]}
            report.write_json(self._options.json, about(self._command()), rows, more | ambiguous)
        return FAILED if wrong else 0

    def _command(self) -> list[str]:
        o = self._options
        return [
            *("devtools.chaos", "--seed", str(o.seed), "--minutes", f"{o.minutes:g}", "--sends", str(o.sends)),
            *("--confirmation", o.confirmation),
        ]

    def _say(self, text: str) -> None:
        say(self._console, text)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count:,}" for name, count in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
