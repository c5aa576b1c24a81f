"""docs/http-api.md: its requests are made, its answers have that shape, and it names every code there is."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from core.models import ApiKey, Tenant
from tests.rig import seed_buckets

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "http-api.md").read_text()
LIST = b"to,first_name\nada@recipients.example,Ada\nnobody,N\nbob@recipients.example,Bob\n"
FILES = {"@list.csv": LIST, "@list.csv.gz": gzip.compress(LIST)}


class Curl:
    """Understands the requests of the page, and remembers what they made."""

    def __init__(self, key: str) -> None:
        self.known = {"KEY": key}

    def __call__(self, command: str) -> Any:
        words = shlex.split(re.sub(r"\$([A-Z]+)", lambda name: self.known[name[1]], command))
        method, url, data, headers = "GET", "", None, {}
        while len(words) > 1:
            match words.pop(1):
                case "-X":
                    method = words.pop(1)
                case "-H":
                    name, _, value = words.pop(1).partition(": ")
                    headers[name] = value
                case "-d" | "--data-binary":
                    given = words.pop(1)
                    data = FILES.get(given, given.encode())
                case word:
                    url = word
        if data is not None:
            method = "POST"
        kind = headers.pop("Content-Type", "application/json")
        path = url.removeprefix("http://127.0.0.1:8000")
        answer = Client().generic(method, path, data or b"", content_type=kind, headers=headers)
        assert answer.status_code < 300, (command, answer.status_code, answer.content)
        if path.endswith("/sends") and method == "POST":
            self.known["SEND"] = answer.json()["id"]
        elif path.endswith("/blasts") and method == "POST":
            self.known["BLAST"] = answer.json()["id"]
        return answer


@pytest.mark.django_db(transaction=True)
def test_the_page_from_top_to_bottom() -> None:
    seed_buckets()
    call_command("create_tenant", "acme", "--name", "Acme", "--domain", "acme.example")
    curl = Curl(ApiKey.issue(Tenant.objects.get(slug="acme"), "test")[1])
    answer: Any = None
    requests = answers = 0
    for language, block in re.findall(r"^```(sh|json)\n(.*?)^```", PAGE, re.S | re.M):
        if language == "json":
            assert _shape(answer.json(), json.loads(block)), block
            answers += 1
            continue
        for command in re.split(r"^(?=curl )", block.replace("\\\n", " "), flags=re.M)[1:]:
            answer = curl(command)
            requests += 1
    assert (requests, answers) == (13, 3)
    assert b"".join(answer.streaming_content).count(b"\r\n") == 3


def _shape(said: Any, shown: Any) -> bool:
    """Same fields in the same order, same values, but for what is different each time."""
    if isinstance(shown, dict):
        return list(said) == list(shown) and all(_shape(said[name], shown[name]) for name in shown)
    return shown == "…" or bool(said == shown)


def test_every_code_of_blasts_is_named() -> None:
    messaging = ROOT / "messaging"
    sources = [
        *(messaging / "api" / "blasts").glob("*.py"),
        *(messaging / "planner").glob("*.py"),
        *(
            messaging / f"{module}.py"
            for module in ("api/slots", "services/launch", "ledger/uploads", "ledger/planning")
        ),
    ]
    raised = re.compile(
        r"(?:InvalidInput|Conflict|NotFound|TooLarge|UnsupportedBody|BodyStalled|Reject)\(\s*(?:\w+, )?\"(\w+)\""
    )
    codes = {code for source in sources for code in raised.findall(source.read_text())}
    assert len(codes) > 30
    of_python_only = {"csv_unreadable", "too_far_ahead", "planning_in_progress"}
    assert {code for code in codes - of_python_only if f"`{code}`" not in PAGE} == set()


def test_every_code_of_a_send_is_named() -> None:
    messaging = ROOT / "messaging"
    modules = ("ledger/idempotency", "ledger/cancel", "services/sender_domains", "services/submit")
    sources = [
        *(messaging / "api").glob("*.py"),
        *(messaging / "api" / "sends").glob("*.py"),
        *(messaging / "channels").rglob("*.py"),
        *(messaging / f"{module}.py" for module in modules),
    ]
    raised = re.compile(r"(?:[A-Z]\w+|_REFUSED.*|\w+\": )\(\s*(?:\d+, )?\"([a-z]+(?:_[a-z]+)+)\"")
    codes = {code for source in sources for code in raised.findall(source.read_text())}
    assert {"attachments_not_supported", "not_authenticated", "template_syntax", "sender_domain_not_allowed"} <= codes
    of_python_only = {"idempotency_key_twice", "too_many_sends"}
    of_the_framework = {  # nothing here raises them
        *("authentication_failed", "permission_denied", "not_acceptable", "invalid_request", "too_many_requests"),
    }
    assert {code for code in codes - of_python_only - of_the_framework if f"`{code}`" not in PAGE} == set()
