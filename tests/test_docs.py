"""The documents match the code: what they show is run here, what they name exists."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from django.core.management import call_command, get_commands, load_command_class
from django.test import Client

import messaging
from core.models import ApiKey, Tenant
from messaging.domain.lifecycle import SEND_STEPS
from messaging.models import Blast, Send
from tests.factories import statuses
from tests.rig import seed_buckets

ROOT = Path(__file__).parents[1]
DOCS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "k6" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def _commands(text: str) -> list[list[str]]:
    """Every `python manage.py …` of the shell blocks, as words."""
    lines = (line for block in _blocks(text, "sh") for line in block.replace("\\\n", " ").splitlines())
    calls = (re.search(r"manage\.py (.+?)(?<!\\)\)?$", line.partition("  #")[0]) for line in lines)
    return [shlex.split(call[1], comments=True) for call in calls if call]


@pytest.fixture
def acme(transactional_db: None) -> Tenant:
    """As the README makes it."""
    seed_buckets()
    words = next(w for w in _commands(README) if w[0] == "create_tenant")
    call_command(*words)
    return Tenant.objects.get(slug="acme")


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_paths_in_backticks_exist(document: Path) -> None:
    names = re.findall(r"`((?:core|messaging|config|devtools|tests|docs)/[\w./-]*\w)`", document.read_text())
    made_in_the_guide = re.compile(r"texto")  # its own example, executed by tests/messaging/providers/test_guide.py
    assert [name for name in names if not (ROOT / name).exists() and not made_in_the_guide.search(name)] == []


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_commands_exist_and_take_these_options(document: Path) -> None:
    for words in _commands(document.read_text()):
        command = load_command_class(get_commands()[words[0]], words[0])
        command.create_parser("manage.py", words[0]).parse_args(words[1:])


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    for document in DOCS:
        assert set(re.findall(r"`make ([a-z0-9]+)", document.read_text())) <= targets, document.name
    assert {"test", "demo"} <= {
        line.removeprefix("make ") for block in _blocks(README, "sh") for line in block.splitlines()
    }


def test_the_two_commands_are_make_targets_that_would_run() -> None:
    for target in ("test", "demo"):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
        assert ".venv/bin/python" in done.stdout


def test_ci_begins_with_the_test_command_of_the_readme() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert lines[0] == _blocks(README, "sh")[0].splitlines()[0] == "make test"
    assert lines[1].startswith("make demo")


def test_the_python_of_the_readme_submits(acme: Tenant) -> None:
    for block in _blocks(README, "python"):
        exec(compile(block, "README.md", "exec"), {})
    assert statuses(tenant=acme, category="transactional") == {"queued": 1}


def test_the_request_of_the_readme_is_accepted(acme: Tenant) -> None:
    block = next(b for b in _blocks(README, "sh") if "curl" in b)
    body = json.loads(re.search(r"-d '(\{.*?\})'", block, re.S)[1])  # type: ignore[index]
    path = re.search(r"127\.0\.0\.1:8000(\S+)", block)[1]  # type: ignore[index]
    key = ApiKey.issue(acme, "test")[1]
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "login-4711"}
    answer = Client(headers=headers).post(path, json.dumps(body), content_type="application/json")
    assert answer.status_code == 202, answer.content
    assert Client(headers=headers).get(f"{path}/{answer.json()['id']}").status_code == 200


def test_the_blast_of_the_readme_is_planned(acme: Tenant, tmp_path: Path) -> None:
    words = next(w for w in _commands(README) if w[0] == "blast")
    (tmp_path / "list.csv").write_text("to,first_name\nada@recipients.example,Ada\n")
    (tmp_path / "spring.txt").write_text("Hello {{ first_name }}")
    call_command(*[str(tmp_path / w) if w in ("list.csv", "spring.txt") else w for w in words])
    assert (Blast.objects.get().state, Send.objects.count()) == ("running", 1)


def test_the_diagram_of_a_send_s_life_is_the_table() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    drawn = set(re.findall(r"^    (\w+) --> (\w+)", text, re.M))
    assert drawn == {(s.value, t.value) for s, targets in SEND_STEPS.items() for t in targets}


def test_every_variable_of_the_environment_is_documented() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    source = (ROOT / "config" / "env.py").read_text()
    names = set(re.findall(r'source(?:\.get\()?,? ?"([A-Z_]+)"', source))
    assert len(names) >= 10
    assert {name for name in names if name not in text} == set()


def test_the_package_offers_what_the_documents_promise() -> None:
    assert callable(messaging.submit)
    assert callable(messaging.submit_many)
    assert callable(messaging.plan_blast)
    with pytest.raises(AttributeError):
        messaging.nothing  # noqa: B018
