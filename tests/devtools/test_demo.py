"""The demo as a user runs it: real processes, exact counts, no times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.processes import CHECKOUT
from tests.config.embedded.processes import Watch
from tests.devtools.process_tree import descendants, naming

pytestmark = pytest.mark.process


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "manage.py", "demo", "--data-dir", str(folder), *flags],
        cwd=CHECKOUT,
        # The settings of manage.py itself then start no server; the demo takes none of these.
        env={**os.environ, "PYTHONUNBUFFERED": "1", "GUARDIAN_GRACE": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.django_db  # the servers that the settings of manage.py find
def test_short(tmp_path: Path) -> None:
    figures_file = tmp_path / "figures.json"
    demo = start(tmp_path / "demo", "--short", "--recipients", "1500", "--json", str(figures_file))
    output, _ = demo.communicate()
    figures = json.loads(figures_file.read_text())
    # On a machine that is busy with something else, times may be missed; counts may not.
    times = ("Login codes were slow", "The blast got")
    assert [said for said in figures["failures"] if not said.startswith(times)] == [], output
    assert demo.returncode == (1 if figures["failures"] else 0), output
    assert figures["blast_sent"] == figures["recipients"] == 1500
    assert figures["otp_submitted"] == figures["otp"]["all"]["count"] > 0
    assert (figures["lost"], figures["doubled"], figures["wrong_rail"], figures["refused"]) == (0, 0, 0, 0)
    assert figures["tokens"] >= figures["requests"]
    assert "1,500 rows: 1,500 planned, 0 duplicates, 0 rejected." in output
    assert "drk_" not in output, "an API key is not for the terminal"
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["in-use.lock", "logs"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("number", "code", "moment"), [(signal.SIGINT, 130, "req/s"), (signal.SIGKILL, -9, "workers are up")]
)
def test_nothing_stays_behind(number: signal.Signals, code: int, moment: str, tmp_path: Path) -> None:
    """Ctrl-C, and the death of the demo itself, while all of it runs."""
    demo = start(tmp_path)
    assert demo.stdout is not None
    for line in demo.stdout:
        if moment in line:
            break
    children, servers = descendants(demo.pid), naming(tmp_path)
    # web, two workers (each a leader and what it started), clock, sandbox, holder of the servers, guardian; servers.
    assert len(children) >= 10
    assert servers
    watch = Watch(*children, *servers)
    demo.send_signal(number)
    output, _ = demo.communicate()
    assert demo.returncode == code
    watch.wait_gone(20)
    if number is signal.SIGINT:
        assert output.splitlines()[-1] == "Interrupted. Everything that was started has been stopped."
        assert "Traceback" not in output
