"""The scripts in the folder `k6`, run by the real program, and what the driver makes of how they end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from devtools.k6.conditions import PROFILES
from devtools.k6.program import program, version
from devtools.k6.script import FOLDER, Posted, Script
from devtools.processes import ProcessDied
from devtools.stack import StackError
from tests.devtools.needs_k6 import needs_k6

pytestmark = [needs_k6, pytest.mark.process]

KEYS = {"KEY_A": "drk_a", "KEY_B": "drk_b"}


class Api(BaseHTTPRequestHandler):
    """Answers each POST with `status`; 202 with an id."""

    protocol_version = "HTTP/1.1"
    status = 202
    seen: list[tuple[str, str, str]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.headers["Authorization"], self.headers["Idempotency-Key"], body["category"]))
        answer = json.dumps({"id": f"id-{len(self.seen)}"} if self.status == 202 else {"error": {"code": "no"}})
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[tuple[type[Api], str]]:
    handler = type("Handler", (Api,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield handler, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def script(folder: Path, name: str = "otp-burst", **env: str) -> Script:
    return Script(program(), name, logs=folder, env=env, summary=folder / "summary.json")


def test_every_profile_has_its_script() -> None:
    assert {path.stem for path in FOLDER.glob("*.js")} == set(PROFILES)


def test_every_script_and_setting_is_documented() -> None:
    source = "".join(path.read_text() for path in FOLDER.rglob("*.js"))
    settings = set(re.findall(r"(?:number|address)\('([A-Z_]+)'", source))
    settings |= {f"{kind}_{name}" for kind in ("KEY", "FROM") for name in "AB"} | set(
        re.findall(r"__ENV\.([A-Z]+)", source)
    )
    internal = {"RECORD", "TENANT"}
    told = set(re.findall(r"`([A-Z_]+)`", readme := (FOLDER / "README.md").read_text()))
    assert len(settings) >= 10
    assert settings - internal == told - {"NAME", "PATH", "K6"}
    assert {path.name for path in FOLDER.glob("*.js")} <= set(re.findall(r"`([\w-]+\.js)`", readme))


def test_each_call_is_made_once_and_written_down(tmp_path: Path, api: tuple[type[Api], str]) -> None:
    handler, url = api
    with script(tmp_path, BASE_URL=url, CODES="20", **KEYS) as run:
        run.begun(20)
        assert run.ended(lambda: None)
    assert sorted(run.posted(), key=lambda p: p.send_id or "") == sorted(
        (Posted("A", "burst", "202", f"id-{number}") for number in range(1, 21)), key=lambda p: p.send_id or ""
    )
    assert {(key, category) for key, _, category in handler.seen} == {("Bearer drk_a", "transactional")}
    assert len({idempotency_key for _, idempotency_key, _ in handler.seen}) == len(handler.seen) == 20
    assert json.loads(run.summary.read_text())["metrics"]["http_reqs"]["count"] == 20
    assert "drk_" not in "".join(path.read_text() for path in tmp_path.glob("*.log"))


def test_a_refused_call_is_written_down_and_crosses_a_threshold(tmp_path: Path, api: tuple[type[Api], str]) -> None:
    handler, url = api
    handler.status = 503
    with script(tmp_path, BASE_URL=url, CODES="3", **KEYS) as run:
        assert not run.ended(lambda: None)
    assert list(run.posted()) == [Posted("A", "burst", "HTTP 503", None)] * 3


def test_nobody_answers(tmp_path: Path) -> None:
    with script(tmp_path, BASE_URL="http://127.0.0.1:9", CODES="2", **KEYS) as run:
        assert not run.ended(lambda: None)
    assert {p.answer for p in run.posted()} == {"no answer (1212)"}  # k6's number for a refused connection


def test_a_blast_that_cannot_be_made_ends_the_run(tmp_path: Path, api: tuple[type[Api], str]) -> None:
    handler, url = api
    handler.status = 403
    with script(tmp_path, "blast-vs-otp", BASE_URL=url, **KEYS) as run:
        with pytest.raises(ProcessDied, match="No blast could be made"):
            run.begun(20)
        with pytest.raises(ProcessDied, match="exit code 107"):
            run.ended(lambda: None)


@pytest.mark.parametrize("name", PROFILES)
def test_a_missing_key_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", "drk_of_mine")  # only what a run is given is for it
    monkeypatch.setenv("KEYS", os.devnull)
    wanted = "KEYS is missing" if name == "small-tenants" else "KEY_A is missing"
    with script(tmp_path, name) as run, pytest.raises(ProcessDied, match=wanted):
        run.ended(lambda: None)


@pytest.mark.parametrize(
    ("name", "env", "wanted"),
    [
        ("otp-burst", {"CODES": "many"}, "CODES must be a number above 0, not 'many'"),
        ("blast-vs-otp", {"KEY_B": ""}, "KEY_B is missing"),
        ("newcomer", {}, "KEYS is missing"),
        ("newcomer", {"KEYS": os.devnull}, "JSON"),
    ],
)
def test_a_wrong_setting_is_named(name: str, env: dict[str, str], wanted: str, tmp_path: Path) -> None:
    with script(tmp_path, name, **KEYS | env) as run, pytest.raises(ProcessDied, match=wanted):
        run.ended(lambda: None)


def test_the_program_is_what_k6_names_or_what_path_has(tmp_path: Path) -> None:
    own = tmp_path / "k6"
    own.write_text("#!/bin/sh\necho k6 v9.9.9 more\n")
    own.chmod(0o755)
    assert program({"K6": str(own), "PATH": ""}) == own
    assert version(own) == "9.9.9"
    with pytest.raises(StackError, match=r"K6=/gone is no program(.|\n)*PATH"):
        program({"K6": "/gone", "PATH": os.defpath})


def test_where_there_is_no_k6_it_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "on-path" / "k6"
    own.parent.mkdir()
    own.write_text("#!/bin/sh\necho a shell script\n")
    own.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "venv" / "bin" / "python"))
    with pytest.raises(StackError, match=r"There is no k6(.|\n)*K6 names(.|\n)*venv/bin and on PATH(.|\n)*install"):
        program({"PATH": str(tmp_path)})
    assert program({"PATH": str(own.parent)}) == own
    with pytest.raises(StackError, match="is not k6"):
        version(own)


def test_without_k6_nothing_is_started(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "devtools.k6", "--data-dir", str(tmp_path / "data"), "--results", str(tmp_path)],
        env={**os.environ, "K6": "/gone"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert "K6=/gone is no program" in run.stdout
    assert not (tmp_path / "data").exists()
