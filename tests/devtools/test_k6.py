"""`make k6 ARGS=--short`: every profile on the whole system, with small numbers. Counts are judged, times are not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from devtools.k6.conditions import COUNTS, PROFILES
from devtools.processes import CHECKOUT
from tests.config.embedded.processes import Watch
from tests.devtools.needs_k6 import needs_k6
from tests.devtools.process_tree import descendants, naming

pytestmark = [needs_k6, pytest.mark.process, pytest.mark.timeout(240)]


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "devtools.k6", "--short", *flags),
            *("--results", str(folder / "results"), "--data-dir", str(folder / "data")),
        ],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("k6")
    run = start(folder)
    output, _ = run.communicate(timeout=220)
    assert run.returncode == 0, output
    assert "drk_" not in output, "an API key is not for the terminal"
    assert not list((folder / "data").glob("services-*")), "the servers' data is left behind"
    (results,) = (folder / "results").glob("*.jsonl")
    for profile in PROFILES:
        (summary,) = (folder / "results").glob(f"*-{profile}.json")
        assert json.loads(summary.read_text())["metrics"]["checks"]["fails"] == 0
    about, *lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert about["run"]["command"].endswith("devtools.k6 --short")
    assert "k6 1." in about["run"]["versions"]
    by_profile: dict[str, dict[str, Any]] = defaultdict(dict)
    for line in lines:
        by_profile[line["section"]][line["name"]] = line
    return by_profile


def test_every_profile_is_judged_by_its_counts(found: dict[str, dict[str, Any]]) -> None:
    assert tuple(found) == PROFILES
    for figures in found.values():
        for count in COUNTS:
            assert figures[count.figure]["value"] == 0
            assert figures[count.figure]["goal"] == {"value": 0, "most": True, "met": True}


def test_the_backlog_is_never_empty(found: dict[str, dict[str, Any]]) -> None:
    figures = found["blast-vs-otp"]
    assert figures["backlog at the start"]["value"] > figures["backlog at the end"]["value"] > 0
    assert figures["mean fill"]["value"] > 90


@pytest.mark.parametrize("profile", ["blast-vs-otp", "product-flood"])
def test_codes_of_both_tenants_are_measured(found: dict[str, dict[str, Any]], profile: str) -> None:
    for name in ("codes of A, p50", "codes of B, p50"):
        assert found[profile][name]["value"] > 0
    assert found[profile]["429s"]["value"] == 0


def test_a_burst_shares_its_requests(found: dict[str, dict[str, Any]]) -> None:
    assert found["otp-burst"]["requests of a submit_many"]["value"] <= 2  # 60 codes: 1 can hold them
    assert found["small-tenants"]["requests"]["value"] <= 5  # 60 tenants × 5: 3 can hold them


def test_a_storm_of_429s_costs_no_attempt(found: dict[str, dict[str, Any]]) -> None:
    assert found["rate-storm"]["429s"]["value"] >= 1
    assert found["rate-storm"]["attempts counted for a 429"]["value"] == 0


def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    run = start(tmp_path, "--only", "blast-vs-otp")
    assert run.stdout is not None
    for line in run.stdout:
        if "measuring for" in line:
            break
    children = descendants(run.pid)
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children]
    (k6,) = (command for command in commands if b"blast-vs-otp.js" in command)
    assert b"--no-usage-report" in k6
    assert not any(b"drk_" in command for command in commands), "other users can read a command line"
    servers = naming(tmp_path)
    assert len(children) >= 8
    assert servers
    watch = Watch(*children, *servers)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130, output
    assert output.splitlines()[-1] == "Interrupted. Everything that was started has been stopped."
    assert "Traceback" not in output
    watch.wait_gone(20)
