"""The run: everything up, the blast planned, login codes while it is sent, then the reckoning."""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psycopg
import redis
import requests
from rich.console import Console

from devtools.demo.depth import DepthSampler
from devtools.demo.display import Display, Progress
from devtools.demo.evidence import Ledger, collect, redis_version
from devtools.demo.figures import Bounds, Evidence, compute, failures, percentile
from devtools.demo.keep import keep
from devtools.demo.load import OtpLoad
from devtools.demo.options import OTPS_PER_SECOND, Options
from devtools.demo.report import report
from devtools.demo.tenants import TENANTS, sender
from devtools.processes import CommandFailed, ProcessDied
from devtools.report import machine
from devtools.stack import Stack, StackError

FAILED, BROKEN, INTERRUPTED = 1, 2, 130

#: Between two looks at how it stands: two small questions, so as not to disturb what is measured.
_LOOK_SECONDS = 0.5
#: Seconds over which a rate is taken.
_RATE_SECONDS = 5
#: Seconds for the last answers to be recorded once the blast is through.
_DRAIN_SECONDS = 15.0
_SUBJECT = "{{ first_name }}, our spring list"
_HTML = "<p>Dear {{ first_name }},</p><p>the spring list is here. Your code: <b>{{ code }}</b>.</p>"


def run(options: Options, console: Console | None = None) -> int:
    """The exit code (see `--help`)."""
    display = Display(console or Console())
    try:
        with _terminable():
            return _run(options, display)
    except (StackError, ProcessDied, CommandFailed) as error:
        display.say(f"The demo could not run. {error}")
        return BROKEN
    except (psycopg.Error, redis.RedisError, requests.RequestException) as error:
        # A server went away under us: its process is watched, but we may notice before its end is seen.
        display.say(f"The demo could not run: {type(error).__name__}. The logs are in {options.data_dir}/logs.")
        return BROKEN
    except KeyboardInterrupt:
        display.say("Interrupted. Everything that was started has been stopped.")
        return INTERRUPTED


def _run(options: Options, display: Display) -> int:
    flags = ["--rate", str(options.rate), "--latency-ms", "50", *(["--keep-bodies"] if options.keep else [])]
    stack = Stack(data_dir=options.data_dir, sandbox_flags=flags)
    with ExitStack() as running:
        parts = "PostgreSQL, Redis, provider, web, clock and two workers"
        with display.step(f"Starting {parts}", f"{parts} are up"):
            running.enter_context(stack)
        keys: dict[str, str] = json.loads(stack.python("-m", "devtools.demo.tenants", str(options.rate)))
        display.say(f"{' and '.join(TENANTS.values())} are there, each with a sender domain and an API key")
        evidence = _evidence(stack, keys, options, display)
        servers = _servers(stack)
        if options.keep:
            code = _reckoning(evidence, servers, options, display)
            keep(stack, keys, display)
        with display.step("Stopping all of it", "All of it is stopped"):
            running.close()
    return code if options.keep else _reckoning(evidence, servers, options, display)


def _reckoning(evidence: Evidence, servers: str, options: Options, display: Display) -> int:
    """Tables, files, and the exit code."""
    figures = compute(evidence)
    failed = failures(figures, Bounds())
    display.report(figures, failed, options.rate, hints=not options.keep)
    if options.json:
        options.json.write_text(json.dumps({"failures": failed, **dataclasses.asdict(figures)}, indent=2) + "\n")
    options.report.write_text(report(evidence, figures, failed, _ran(options, servers)), encoding="utf-8")
    display.say(f"The same over time, as a page: {options.report}")
    return FAILED if failed else 0


def _ran(options: Options, servers: str) -> list[tuple[str, str]]:
    packages = ("Django", "dramatiq", "django-dramatiq", "psycopg", "redis", "gunicorn")
    rows = [
        ("date", machine.now()),
        ("machine", machine.hardware()),
        ("system", machine.system()),
        ("options", f"--recipients {options.recipients} --rate {options.rate}"),
        ("servers", servers),
        ("versions", machine.versions(packages)),
        ("commit", machine.commit()),
    ]
    return [(name, value) for name, value in rows if value]


def _servers(stack: Stack) -> str:
    with Ledger(stack.database_url) as ledger:
        return f"PostgreSQL {ledger.version()}, Redis {redis_version(stack.redis_url)}"


def _evidence(stack: Stack, keys: Mapping[str, str], options: Options, display: Display) -> Evidence:
    with Ledger(stack.database_url) as ledger:
        _blast(stack, options, display)
        depths = DepthSampler(ledger.depths)
        load = OtpLoad(stack.web_url, keys, per_second=OTPS_PER_SECOND)
        load.start()
        try:
            timed_out = _watch(stack, ledger, load, depths, options, display)
        finally:
            load.stop()
        timed_out |= not _drained(stack, ledger)
        depths.take()
        return collect(
            stack,
            ledger,
            load.posted(),
            limit=options.rate,
            recipients=options.recipients,
            timed_out=timed_out,
            depths=depths.depths,
        )


def _write_list(path: Path, rows: int) -> None:
    names = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Radia", "Ken")
    with path.open("w", encoding="utf-8") as file:
        file.write("to,first_name,code\n")
        file.writelines(
            f"customer{number}@inbox.example,{names[number % len(names)]},SPRING-{number}\n"
            for number in range(1, rows + 1)
        )


def _blast(stack: Stack, options: Options, display: Display) -> None:
    """As a user would: the command, with its own progress bar on the terminal."""
    recipients = options.data_dir / "recipients.csv"
    _write_list(recipients, options.recipients)
    slug = next(iter(TENANTS))
    display.say(
        f'$ manage.py blast --tenant {slug} --csv {recipients.name} --from "{sender(slug)}" --subject … --html …'
    )
    arguments = ("--from", sender(slug), "--subject", _SUBJECT, "--html-text", _HTML, "--name", "Spring list")
    stack.manage(
        *("blast", "--tenant", slug, "--csv", str(recipients), *arguments),
        capture=False,
        env={"LOG_LEVEL": "WARNING"},  # the log of a command goes where its output goes
    )
    recipients.unlink()


class _Watch:
    """How it stands, asked for in small questions: the ledger about codes that are not accepted yet, the provider's
    counts for the rest."""

    def __init__(self, stack: Stack, ledger: Ledger, load: OtpLoad, options: Options) -> None:
        self._stack, self._ledger, self._load, self._options = stack, ledger, load, options
        self._started = time.monotonic()
        self._latencies: dict[str, float] = {}

    def look(self) -> Progress:
        ids = [p.send_id for p in self._load.posted() if p.send_id is not None]
        self._latencies |= self._ledger.accepted([i for i in ids if i not in self._latencies])
        stats = self._stack.sandbox.stats()
        ordered = sorted(self._latencies.values())
        requests_per_second, emails_per_second = _rates(stats)
        return Progress(
            elapsed=time.monotonic() - self._started,
            # Codes that the provider has and the ledger does not know yet count here for the moment.
            blast_sent=max(0, min(self._options.recipients, stats["emails_accepted"] - len(self._latencies))),
            blast_total=self._options.recipients,
            emails_per_second=emails_per_second,
            otp_sent=len(ids),
            otp_accepted=len(ordered),
            otp_p95=percentile(ordered, 95) if ordered else None,
            requests_per_second=requests_per_second,
            limit=self._options.rate,
            too_many=stats["by_status"].get("429", 0),
        )


def _rates(stats: Mapping[str, Any]) -> tuple[float, float]:
    """Requests and e-mails per second, over the last whole seconds."""
    last = stats["per_second"][-1 - _RATE_SECONDS : -1]  # the second in hand is not over
    if not last:
        return 0.0, 0.0
    seconds = last[-1][0] - last[0][0] + 1
    return sum(counted for _, counted, _ in last) / seconds, sum(mails for _, _, mails in last) / seconds


def _watch(
    stack: Stack, ledger: Ledger, load: OtpLoad, depths: DepthSampler, options: Options, display: Display
) -> bool:
    """Return when the provider has the whole blast: False; or True if that takes far too long."""
    # Twice what the slowest run that passes takes, and a margin.
    rate_left = options.rate - OTPS_PER_SECOND * len(TENANTS)
    deadline = time.monotonic() + 2 * options.recipients / 100 / (rate_left * Bounds().share) + 30
    watch = _Watch(stack, ledger, load, options)
    with display.live() as show:
        while time.monotonic() < deadline:
            stack.check()
            depths.sample()
            progress = watch.look()
            show(progress)
            if progress.blast_sent >= options.recipients:
                return False
            time.sleep(_LOOK_SECONDS)
    return True


def _drained(stack: Stack, ledger: Ledger) -> bool:
    """Wait until every send is at its end. False: it did not come to that."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while ledger.open_sends():
        if time.monotonic() > deadline:
            return False
        stack.check()
        time.sleep(0.1)
    return True


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: with its processes."""

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
