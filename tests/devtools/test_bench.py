"""`make bench ARGS=--quick`: every section on the whole system, with small numbers. Counts are checked, times are not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from typing import Any

import pytest

from devtools.bench.options import SECTIONS
from devtools.processes import CHECKOUT

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("bench")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "devtools.bench",
            "--quick",
            "--json",
            folder / "b.jsonl",
            "--data-dir",
            folder / "data",
        ],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    about, *lines = [json.loads(line) for line in (folder / "b.jsonl").read_text().splitlines()]
    assert about["run"]["command"].endswith("--quick")
    assert not list((folder / "data").glob("services-*")), "the servers' data is left behind"
    by_section: dict[str, dict[str, Any]] = defaultdict(dict)
    for line in lines:
        by_section[line["section"]][line["name"]] = line
    return by_section


def test_every_section_has_figures_that_name_what_ran(found: dict[str, dict[str, Any]]) -> None:
    assert tuple(found) == SECTIONS
    for figures in found.values():
        for figure in figures.values():
            assert figure["ran"]
            assert figure["value"] >= 0
            assert figure["goal"] is None, "small numbers reach or miss nothing"


def test_the_engine_fills_its_batches(found: dict[str, dict[str, Any]]) -> None:
    assert found["engine"]["mean fill"]["value"] == 100
    assert found["engine"]["1 × 8 threads"]["batches"] == 30
    assert found["engine"]["accepted ÷ provider alone"]["value"] < 1


def test_small_tenants_share_their_requests(found: dict[str, dict[str, Any]]) -> None:
    assert found["small_tenants"]["requests"]["value"] <= 5  # 60 tenants × 5: 3 can hold them
    assert found["small_tenants"]["mean fill"]["value"] >= 60


def test_nobody_is_left_out(found: dict[str, dict[str, Any]]) -> None:
    fairness = found["fairness"]
    assert all(figure["value"] > 0.5 for name, figure in fairness.items() if name.startswith("Jain"))
    assert fairness["a newcomer's wait, longest"]["value"] < 10


def test_the_limit_is_kept(found: dict[str, dict[str, Any]]) -> None:
    for name, figure in found["limit"].items():
        if name.startswith("use of the limit"):
            assert 0 < figure["value"] <= 100
            assert figure["requests"] >= 10


def test_steps_are_all_measured(found: dict[str, dict[str, Any]]) -> None:
    for name in ("candidates", "governor", "claim", "render", "request", "settle", "record", "batch"):
        assert found["steps"][name]["value"] > 0
