"""Starting and stopping, and the command line."""

from __future__ import annotations

import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from devtools.sandbox.cli import main
from devtools.sandbox.process import Sandbox
from tests.devtools.sandbox_client import connected, ids_of, raw_batch, read_all, send


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_exit_code_0(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "devtools.sandbox", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline().startswith("sandbox listening on http://127.0.0.1:")
    process.send_signal(number)
    assert process.communicate(timeout=10) == ("", "")
    assert process.returncode == 0


def test_it_stops_despite_idle_hanging_and_slow_clients() -> None:
    with Sandbox("--rate", "0", "--latency-ms", "60000") as sandbox:
        sandbox.fault("hang", count=1)
        with connected(sandbox) as idle, connected(sandbox) as hanging, connected(sandbox) as slow:
            hanging.sendall(raw_batch())
            sandbox.wait(requests=1)
            slow.sendall(raw_batch())
            sandbox.wait(emails=1)
            assert sandbox.stop() == 0
            assert read_all(idle) == read_all(hanging) == b""
            assert read_all(slow).startswith(b"HTTP/1.1 200 OK\r\n"), "what was accepted is still answered"


def test_two_run_side_by_side() -> None:
    flags = ("--rate", "0", "--latency-ms", "0")
    with Sandbox(*flags) as one, Sandbox(*flags) as other:
        assert one.url != other.url
        assert ids_of(send(one)) != ids_of(send(other))


def test_a_taken_port_is_said_plainly(sandbox: Sandbox) -> None:
    port = str(urlsplit(sandbox.url).port)
    done = subprocess.run(
        [sys.executable, "-m", "devtools.sandbox", "--port", port], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert done.stdout == ""


def test_a_process_that_does_not_start_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        Sandbox("--host", "192.0.2.1")


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert "examples" in text
    assert "curl -X POST http://127.0.0.1:8025/_sandbox/faults" in text


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--rate", "-1"], "at least 0"),
        (["--rate", "fast"], "not a whole number"),
        (["--port", "70000"], "between 0 and 65535"),
        (["--latency-ms", "nan"], "not a number of milliseconds"),
        (["--window", "sliding"], "invalid choice"),
        (["--burst", "3"], "--burst belongs to --window bucket"),
    ],
)
def test_wrong_flags_are_explained(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err


def test_the_server_imports_neither_django_nor_the_project() -> None:
    code = (
        "import sys, devtools.sandbox.server, devtools.sandbox.cli;"
        "print([m for m in sys.modules if m.split('.')[0] in ('django', 'core', 'messaging', 'config', 'requests')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_management_command_takes_the_same_flags() -> None:
    from devtools.management.commands.sandbox_provider import Command

    parser = Command().create_parser("manage.py", "sandbox_provider")
    assert "--send-id-tag" in parser.format_help()
    assert "examples\n" in parser.format_help()
    values = vars(parser.parse_args(["--port", "0", "--rate", "7"]))
    assert (values["port"], values["rate"]) == (0, 7)
