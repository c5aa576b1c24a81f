"""`make chaos`, one minute of it: each kind of fault once, on the whole system."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos.schedule import KINDS
from devtools.processes import CHECKOUT
from devtools.stack import RAILS
from tests.config.embedded.processes import Watch
from tests.devtools.process_tree import descendants, naming

pytestmark = [pytest.mark.process, pytest.mark.timeout(330)]
SENDS = 6_000


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "devtools.chaos", "--minutes", "1", "--sends", str(SENDS), "--seed", "1"),
            *("--data-dir", str(folder / "data"), *flags),
        ],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("chaos")
    run = start(folder, "--json", str(folder / "chaos.json"))
    output, _ = run.communicate(timeout=320)
    assert run.returncode == 0, output
    assert "drk_" not in output, "an API key is not for the terminal"
    assert not list((folder / "data").glob("services-*")), "the servers' data is left behind"
    result: dict[str, Any] = json.loads((folder / "chaos.json").read_text())
    return result


def test_nothing_is_lost_or_doubled(found: dict[str, Any]) -> None:
    assert found["sent"] == SENDS
    assert found["wrong"] == {}
    assert found["ambiguous"] == []
    assert {"doubled sends", "lost: asked for, never accepted", "dead letters"} <= found["counts"].keys()


def test_each_kind_of_fault_happened_and_ended(found: dict[str, Any]) -> None:
    assert {row["fault"] for row in found["timeline"]} == KINDS.keys()
    for row in found["timeline"]:
        assert row["lasted"] > 0
        assert row["recovered"].keys() == set(RAILS)
    (frozen,) = (row for row in found["timeline"] if row["fault"] == "worker-frozen")
    assert frozen["lasted"] > 30, "longer than a lease"


def test_submits_were_repeated_and_the_provider_failed(found: dict[str, Any]) -> None:
    figures = found["figures"]
    assert figures["submits"] < figures["tries"]
    assert figures["answers"].keys() > {"200"}


def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    run = start(tmp_path)
    assert run.stdout is not None
    for line in run.stdout:
        if "worker-frozen" in line:
            break
    children = descendants(run.pid)
    servers = naming(tmp_path)
    assert len(children) >= 10
    assert servers
    watch = Watch(*children, *servers)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=90)
    assert run.returncode == 130, output
    assert output.splitlines()[-1] == "Interrupted. Everything that was started has been stopped."
    assert "Traceback" not in output
    watch.wait_gone(20)
