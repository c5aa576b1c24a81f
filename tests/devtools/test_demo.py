"""The demo as a user runs it: real processes, exact counts, no times."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urljoin

import pytest
import requests

from devtools.processes import CHECKOUT
from tests.config.embedded.processes import Watch
from tests.devtools.process_tree import descendants, naming

pytestmark = pytest.mark.process


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "manage.py", "demo", "--data-dir", str(folder)),
            *("--report", str(folder.parent / "report.html"), *flags),
        ],
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
    page = (tmp_path / "report.html").read_text()
    assert f"{figures['otp_submitted']} login codes" in page or figures["failures"]
    assert output.splitlines()[-1] == f"The same over time, as a page: {tmp_path / 'report.html'}"
    assert str(CHECKOUT) not in page
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["in-use.lock", "logs"]


@pytest.mark.django_db
def test_keep_leaves_it_running_until_ctrl_c(tmp_path: Path) -> None:
    """The printed addresses work: admin with the printed login, inbox, API with the printed key."""
    demo = start(tmp_path / "demo", "--recipients", "500", "--keep")
    try:
        _look_around(_written_until(demo, "Idempotency-Key: mine-1"))
        watch = Watch(*descendants(demo.pid), *naming(tmp_path))
    finally:
        demo.send_signal(signal.SIGINT)
        output, _ = demo.communicate()
    assert demo.returncode in (0, 1), output  # 1: a time was missed on a busy machine
    assert output.splitlines()[-1].startswith("All of it is stopped")
    watch.wait_gone(20)


def _written_until(demo: subprocess.Popen[str], words: str) -> str:
    assert demo.stdout is not None
    written = ""
    for line in demo.stdout:
        written += line
        if words in line:
            return written
    pytest.fail(f"it ended: {written}")


def _look_around(written: str) -> None:
    admin, password = _found(r"(http\S+/admin/) +user demo, password (\S+)", written)
    (inbox,) = _found(r"(http\S+/_sandbox/inbox)", written)
    api, key = _found(r"(http\S+/sends) .*key: (drk_\S+)", written)
    with requests.Session() as browser:
        browser.trust_env = False
        page = browser.get(f"{admin}login/", timeout=30).text
        (token,) = _found(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        form = {"username": "demo", "password": password, "csrfmiddlewaretoken": token, "next": "/admin/"}
        assert "Overview | dualrail" in browser.post(f"{admin}login/", form, timeout=30).text
        (stylesheet,) = _found(r'href="(/static/admin/css/base\S*css)"', page)
        assert browser.get(urljoin(admin, stylesheet), timeout=30).status_code == 200

        body = json.dumps(json.loads(_found(r" -d '(.+)'", written)[0]))
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "mine-1", "Content-Type": "application/json"}
        assert browser.post(api, body, headers=headers, timeout=30).status_code == 202
        deadline = time.monotonic() + 20
        while "you@inbox.example" not in (page := browser.get(inbox, params={"send_id": ""}, timeout=30).text):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (mine,) = _found(r"(/_sandbox/inbox/[0-9a-f-]+)", page)
        assert "<pre>123456</pre>" in browser.get(urljoin(inbox, mine), timeout=30).text


def _found(pattern: str, text: str) -> tuple[str, ...]:
    found = re.search(pattern, text)
    assert found, text
    return found.groups()


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
