"""`manage.py blast`, from the command line inwards: what it prints, how it ends, what it says when something is wrong."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from core.models import Tenant
from messaging.domain.lifecycle import BlastState
from messaging.models import Blast, Send
from messaging.planner import fill
from messaging.planner.rows import chunks
from tests.messaging.planner.rig import assert_adds_up, plan, start_child, write_csv

CONTENT = ["--from", "News <news@acme.org>", "--subject", "Hi {{ name }}", "--html-text", "<p>{{ name }}</p>"]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "good.csv", 3)


def run(*arguments: object) -> str:
    out = io.StringIO()
    call_command("blast", "--tenant", "acme", *map(str, arguments), stdout=out, stderr=io.StringIO())
    return out.getvalue()


def failed(*arguments: object) -> str:
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_plans_and_launches(tenant: Tenant, good: Path) -> None:
    output = run("--csv", good, *CONTENT, "--name", "Spring")
    blast = assert_adds_up(Blast.objects.get().pk)
    assert f"Blast {blast.pk}: launched." in output
    assert "3 rows: 3 planned, 0 duplicates, 0 rejected." in output
    assert (blast.state, blast.name) == (BlastState.RUNNING, "Spring")


def test_bodies_from_files(tenant: Tenant, good: Path, tmp_path: Path) -> None:
    html, text = tmp_path / "b.html", tmp_path / "b.txt"
    html.write_text("<p>{{ name }} é</p>", encoding="utf-8")
    text.write_text("{{ name }}", encoding="utf-8")
    run("--csv", good, "--from", "n@acme.org", "--subject", "s", "--html", html, "--text", text)
    assert Send.objects.count() == 3


def test_headers_and_replies(tenant: Tenant, good: Path) -> None:
    run("--csv", good, *CONTENT, "--header", "List-Unsubscribe: <https://acme.org/u>", "--reply-to", "a@acme.org")
    assert "NAME:VALUE" in failed("--csv", good, *CONTENT, "--header", "nonsense")


def test_shows_the_first_rejected_rows_and_writes_all(tenant: Tenant, tmp_path: Path) -> None:
    path, rejects = tmp_path / "list.csv", tmp_path / "rejects.csv"
    path.write_text("to,name\na@x.org,A\n" + "secret,B\n" * 25)
    output = run("--csv", path, *CONTENT)
    assert "1 planned, 0 duplicates, 25 rejected" in output
    assert "  line 3: to: must be one e-mail address" in output
    assert output.count("  line ") == 10
    assert "… and 15 more; --rejects FILE writes them all" in output
    assert "secret" not in output
    run("--csv", path, *CONTENT, "--rejects", rejects)
    lines = rejects.read_text().splitlines()
    assert lines[0] == "line,code,reason"
    assert len(lines) == 26
    assert lines[1].startswith("3,invalid_address,")


def test_plan_look_launch(tenant: Tenant, good: Path) -> None:
    output = run("--csv", good, *CONTENT, "--no-launch")
    blast = Blast.objects.get()
    assert f"--launch {blast.pk}" in output
    assert blast.state == BlastState.PLANNING
    assert "launched." in run("--launch", blast.pk)
    assert "launched." in run("--launch", blast.pk)


def test_resume_by_id_and_key(tenant: Tenant, good: Path) -> None:
    run("--csv", good, *CONTENT, "--no-launch", "--key", "k")
    blast = Blast.objects.get()
    assert "3 planned" in run("--csv", good, "--resume", blast.pk)
    assert "by an earlier command; nothing was planned now" in run("--csv", good, *CONTENT, "--key", "k")
    assert "idempotency_key_reused" in failed("--csv", good, *CONTENT, "--key", "k", "--name", "other")
    assert Blast.objects.count() == 1


def test_standard_input(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"to,name\na@x.org,A\n")))
    assert "1 planned" in run("--csv", "-", *CONTENT)


def test_bad_input_is_one_clear_line(tenant: Tenant, good: Path, tmp_path: Path) -> None:
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"to,name\na@x.org,Jos\xe9\n")
    bad = tmp_path / "bad.csv"
    bad.write_text("to,name\nsecret,A\n")
    assert "no tenant with this slug" in failed("--tenant", "nobody", "--csv", good, *CONTENT)
    assert failed() == "Missing: --csv, --from, --subject. See: manage.py blast --help"
    assert "cannot be opened: No such file" in failed("--csv", tmp_path / "none.csv", *CONTENT)
    assert "Is a directory" in failed("--csv", tmp_path, *CONTENT)
    assert "none.html: No such file" in failed("--csv", good, *CONTENT[:4], "--html", tmp_path / "none.html")
    assert "not UTF-8" in failed("--csv", good, *CONTENT[:4], "--html", latin)
    assert "Line 2 of the CSV file is not UTF-8" in failed("--csv", latin, *CONTENT)
    assert "uses code, which" in failed("--csv", good, *CONTENT[:4], "--html-text", "{{ code }}")
    assert failed("--csv", good, "--from", "x", *CONTENT[2:]).startswith("from: must be one e-mail address")
    assert "unknown_blast" in failed("--csv", good, "--resume", "0" * 32)
    assert not Blast.objects.exists()
    only_bad = failed("--csv", bad, *CONTENT)
    assert "no_valid_recipients" in only_bad
    assert "--resume" not in only_bad
    assert "secret" not in only_bad


def test_what_fails_midway_says_how_to_resume(tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "chunks", lambda rows, **more: chunks(rows, max_rows=500, **more))
    data = b"to,name\n" + b"".join(b"p%d@x.org,P\n" % i for i in range(5000)) + b"p@x.org,\xe9\n"
    stream = io.BytesIO(data)
    stream.seekable = lambda: False  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    message = failed("--csv", "-", *CONTENT)
    blast = assert_adds_up(Blast.objects.get().pk)
    assert blast.planned
    assert "Line 5002 " in message
    assert message.endswith(
        f"{blast.rows_read:,} rows are planned and nothing is sent."
        f" Resume with: manage.py blast --tenant acme --resume {blast.pk} --csv -"
    )


def test_cancelled_blast_is_not_offered_for_resuming(tenant: Tenant, good: Path) -> None:
    blast = Blast.objects.get(pk=plan(tenant, good, launch=False).blast_id)
    Blast.objects.update(state=BlastState.CANCELLED)
    assert "cancelled by an earlier command" in run("--csv", good, "--resume", blast.pk)
    assert "cannot be launched" in failed("--launch", blast.pk)


@pytest.mark.process
def test_interrupted_by_hand(committed_tenant: Tenant, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "list.csv", 400_000)
    child = start_child(
        "manage", "blast", "--tenant", "acme", "--csv", path, *CONTENT, "--key", "k", stderr=subprocess.PIPE
    )
    try:
        assert child.stderr is not None
        assert child.stderr.readline().startswith("blast ")  # it exists: planning goes on
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
    finally:
        child.kill()
    blast = assert_adds_up(Blast.objects.get().pk)
    assert child.returncode == 130
    assert "Traceback" not in errors
    told = re.search(
        r"Interrupted\. At least ([\d,]+) rows are planned and nothing is sent\. Resume with: manage\.py", errors
    )
    assert told
    assert int(told[1].replace(",", "")) <= blast.rows_read
    assert f"--resume {blast.pk} --csv {path}" in errors
    assert blast.state == BlastState.PLANNING


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("blast", "--help")
    text = capsys.readouterr().out
    assert "to,first_name,code" in text
    assert "--resume" in text
    assert "examples:" in text
