"""The supervisor, on small real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.processes import CHECKOUT, CommandFailed, Process, ProcessDied, Supervisor
from tests.config.embedded.processes import Watch
from tests.devtools.process_tree import descendants, state

#: Says it is up, with the pid of a child that it has; ends in an orderly way, after the child.
PARENT = """
import signal, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
def leave(*_):
    print("asked", flush=True)
    child.kill()
    child.wait()
    sys.exit(3)
signal.signal(signal.SIGTERM, leave)
print("up", child.pid, flush=True)
while True:
    signal.pause()
"""
#: Takes no hint, and has a child that does not either.
STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
print("up", child.pid, flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path / "logs") as started:
        yield started


def start(supervisor: Supervisor, code: str, name: str = "it") -> Process:
    return supervisor.start(name, [sys.executable, "-c", code], ready=r"up (\d+)")


def started(supervisor: Supervisor, code: str) -> tuple[Process, Watch]:
    """It is up; the watch is for it and its child."""
    process = start(supervisor, code)
    return process, Watch(process.pid, int(process.wait_ready(20)[1]))


def test_ready_is_a_line_of_its_log(supervisor: Supervisor) -> None:
    process = start(supervisor, PARENT)
    assert int(process.wait_ready(20)[1]) in descendants(process.pid)
    assert process.running
    assert process.log == supervisor.logs / "it.log"


def test_one_that_ends_before_it_is_ready_is_told_with_its_log(supervisor: Supervisor) -> None:
    process = start(supervisor, "print('no port left'); raise SystemExit(7)")
    with pytest.raises(ProcessDied, match=r"it ended with exit code 7 before it was ready(.|\n)*no port left"):
        process.wait_ready(20)


def test_one_that_is_not_ready_in_time_is_told(supervisor: Supervisor) -> None:
    process = start(supervisor, "input = __import__('time').sleep(600)")
    with pytest.raises(ProcessDied, match=r"not ready after 0\.05 s(.|\n)*nothing was written"):
        process.wait_ready(0.05)


def test_kill_takes_the_group_and_is_no_death_of_its_own(supervisor: Supervisor) -> None:
    process, watch = started(supervisor, PARENT)
    process.kill()
    watch.wait_gone(5)
    assert process.exit_code == -signal.SIGKILL
    supervisor.check()


def test_it_starts_again_with_a_log_that_goes_on(supervisor: Supervisor) -> None:
    process, _ = started(supervisor, PARENT)
    first = process.wait_ready()[1]
    process.kill()
    process.start()
    second = process.wait_ready(20)[1]
    assert first != second, "ready is what it wrote since its last start"
    assert process.tail() == f"up {first}\nup {second}"


def test_a_running_one_is_not_started_twice(supervisor: Supervisor) -> None:
    process, _ = started(supervisor, PARENT)
    with pytest.raises(RuntimeError, match="it is running"):
        process.start()


def test_a_group_is_asked_at_once_and_the_leader_not_again(supervisor: Supervisor) -> None:
    process, watch = started(supervisor, PARENT)
    process.ask_group_to_stop()
    watch.wait_gone(5)  # the child, too, which has no handler
    assert process.terminate() == 3
    assert process.written().count("asked") == 1
    supervisor.check()


def test_one_is_added_and_started_later(supervisor: Supervisor) -> None:
    process = supervisor.add("later", [sys.executable, "-c", PARENT], ready=r"up (\d+)")
    assert not process.running
    supervisor.check()
    process.start()
    process.wait_ready(20)


def test_terminate_asks_once_and_gives_the_exit_code(supervisor: Supervisor) -> None:
    process, watch = started(supervisor, PARENT)
    process.ask_to_stop()
    assert process.terminate() == 3
    assert process.written().count("asked") == 1, "a worker takes a second SIGTERM for “at once”"
    watch.wait_gone(5)


def test_terminate_kills_the_group_of_one_that_takes_no_hint(supervisor: Supervisor) -> None:
    process, watch = started(supervisor, STUBBORN)
    assert process.terminate(0.1) == -signal.SIGKILL
    watch.wait_gone(5)


def test_terminate_kills_what_an_orderly_leader_leaves_behind(supervisor: Supervisor) -> None:
    process, watch = started(supervisor, PARENT.replace("    child.kill()\n    child.wait()\n", ""))
    assert process.terminate() == 3
    watch.wait_gone(5)


def test_pause_stops_the_group_and_resume_lets_it_go_on(supervisor: Supervisor) -> None:
    process, watch = started(supervisor, PARENT)
    child = int(process.wait_ready()[1])
    process.pause()
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    deadline = time.monotonic() + 5
    while state(child) != "T":  # its parent's stop is told to us, its own is not
        assert time.monotonic() < deadline
    process.resume()
    os.waitid(os.P_PID, process.pid, os.WCONTINUED)
    process.pause()
    assert process.terminate() == 3, "also a paused one hears that it should end"
    watch.wait_gone(5)


def test_a_death_that_nobody_wanted_is_an_error(supervisor: Supervisor) -> None:
    process, _ = started(supervisor, PARENT)
    supervisor.check()
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessDied, match=r"it died with exit code -9(.|\n)*up \d+"):
        supervisor.check()


def test_leaving_the_block_ends_everything(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        _, watch = started(supervisor, PARENT)
        guardian = Watch(supervisor.guardian)
    watch.wait_gone(5)
    guardian.wait_gone(5)


def test_run_returns_the_output(supervisor: Supervisor) -> None:
    assert supervisor.run(["sh", "-c", "echo $GREETING"], env={"GREETING": "hello"}) == "hello\n"


def test_run_raises_with_what_was_written(supervisor: Supervisor) -> None:
    with pytest.raises(CommandFailed, match=r"`sh -c .*exit code 4\.\nno such table") as raised:
        supervisor.run(["sh", "-c", "echo no such table >&2; exit 4"])
    assert "None" not in str(raised.value)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_when_the_supervisor_dies_nothing_stays(number: signal.Signals, tmp_path: Path) -> None:
    """Whatever it dies of, and however stubborn the children are."""
    script = f"""
import json, sys, time
from pathlib import Path
from devtools.processes import Supervisor
supervisor = Supervisor(Path(sys.argv[1]))
pids = [supervisor.guardian]
for name, code in (("kind", {PARENT!r}), ("stubborn", {STUBBORN!r})):
    process = supervisor.start(name, [sys.executable, "-c", code], ready=r"up (\\d+)")
    pids += [process.pid, int(process.wait_ready()[1])]
print(json.dumps(pids), flush=True)
time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=CHECKOUT,
        env={**os.environ, "GUARDIAN_GRACE": "0.3"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    watch = Watch(*json.loads(process.stdout.readline()))
    process.send_signal(number)
    process.communicate()
    watch.wait_gone(10)
    assert "asked" in (tmp_path / "kind.log").read_text(), "who ends in an orderly way gets the time for it"
