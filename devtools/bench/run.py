"""The sections, one after the other; each figure is shown as soon as it is there."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import redis
import requests
from rich.console import Console

from devtools.bench import engine, fairness, governor, limit, pickup, planning, small_tenants, steps, table
from devtools.bench.goals import Figure
from devtools.bench.lab import BenchFailed, Lab
from devtools.bench.options import SECTIONS, Options
from devtools.bench.remote import RemoteFailed
from devtools.processes import CommandFailed, ProcessDied
from devtools.report import machine
from devtools.stack import StackError

FAILED, BROKEN, INTERRUPTED = 1, 2, 130

RUNNERS: Mapping[str, Callable[[Lab, Options], Iterator[Figure]]] = {
    "engine": engine.run,
    "steps": steps.run,
    "planning": planning.run,
    "small_tenants": small_tenants.run,
    "pickup": pickup.run,
    "governor": governor.run,
    "limit": limit.run,
    "fairness": fairness.run,
}
assert tuple(RUNNERS) == SECTIONS


def run(options: Options, console: Console | None = None) -> int:
    """The exit code (see `--help`)."""
    console = console or Console()
    ran = about(["devtools.bench", *arguments(options)])
    figures: list[Figure] = []

    def all_of_them() -> None:
        with Lab(options.data_dir) as lab:
            for section in options.only:
                figures.extend(_section(section, lab, options, console))

    try:
        if code := outcome(all_of_them, "The bench", options.data_dir, console):
            return code
    finally:
        if options.json and figures:
            table.write_json(options.json, figures, ran)
    say(console, "")
    if options.markdown:
        say(console, table.markdown(figures, ran))
    else:
        table.show_all(figures, console)
        say(console, _verdict(figures, options))
    return FAILED if options.strict and _missed(figures) else 0


def _missed(figures: Sequence[Figure]) -> int:
    return sum(figure.goal is not None and not figure.goal.met(figure.value) for figure in figures)


def _verdict(figures: Sequence[Figure], options: Options) -> str:
    counts = "Every count adds up: a lost, doubled or unsent e-mail would have stopped the bench."
    if options.quick:
        return f"{counts} The numbers were small: the times mean nothing."
    goals = sum(figure.goal is not None for figure in figures)
    return f"{counts} Goals met: {goals - _missed(figures)} of {goals}."


def outcome(work: Callable[[], None], what: str, data_dir: Path, console: Console) -> int:
    """Do it; 0, or what the exit code is (see `--help`) and said why. `what` is the subject of the sentence."""
    try:
        work()
    except BenchFailed as error:
        say(console, f"FAILED: {error}")
        return FAILED
    except (StackError, ProcessDied, CommandFailed, RemoteFailed) as error:
        say(console, f"{what} could not run. {error}")
        return BROKEN
    except (psycopg.Error, redis.RedisError, requests.RequestException) as error:
        say(console, f"{what} could not run: {type(error).__name__}. The logs are in {data_dir}/logs.")
        return BROKEN
    except KeyboardInterrupt:
        say(console, "Interrupted. Everything that was started has been stopped.")
        return INTERRUPTED
    return 0


def _section(section: str, lab: Lab, options: Options, console: Console) -> list[Figure]:
    say(console, f"{section}:")
    began, found = time.monotonic(), []
    for figure in RUNNERS[section](lab, options):
        if options.quick:
            figure = replace(figure, goal=None)  # small numbers reach or miss nothing
        found.append(figure)
        table.show(figure, console)
    say(console, f"  ({time.monotonic() - began:.0f} s)")
    return found


def about(command: list[str]) -> dict[str, Any]:
    """Where, when and by what command it ran."""
    return {
        "machine": machine.hardware(),
        "system": machine.system(),
        "date": machine.now(),
        "versions": machine.versions(("Django", "dramatiq", "psycopg", "redis")),
        "commit": machine.commit(),
        "command": shlex.join(["python", "-m", *command]),
    }


def arguments(options: Options) -> list[str]:
    """What was asked for beyond the defaults, as it would be typed."""
    said = ["--only", ",".join(options.only)] if options.only != SECTIONS else []
    if options.quick:
        return [*said, "--quick"]
    usual = Options()
    if options.sends != usual.sends:
        said += ["--sends", str(options.sends)]
    if options.workers != usual.workers:
        said += ["--workers", ",".join(f"{processes}x{threads}" for processes, threads in options.workers)]
    if options.seconds != usual.seconds:
        said += ["--seconds", f"{options.seconds:g}"]
    return said


def say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
