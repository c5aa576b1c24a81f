"""The provider that knows no idempotency keys: what is repeated is sent twice, so nothing may be."""

from __future__ import annotations

import os
import subprocess
import sys
from uuid import uuid4

from devtools.chaos.adapter import AtMostOnceAdapter
from devtools.processes import CHECKOUT
from devtools.sandbox.process import Sandbox
from messaging.providers.base import Confirmation, Item, Verdict

PATH = "devtools.chaos.adapter.AtMostOnceAdapter"


def test_a_repetition_is_a_double(sandbox: Sandbox) -> None:
    adapter = AtMostOnceAdapter(api_key="re_sandbox", base_url=sandbox.url)
    assert adapter.confirmation is Confirmation.AT_MOST_ONCE
    item = Item(
        send_id=uuid4(), to="ada@inbox.example", sender="hello@acme.example", subject="Hello", html=None, text="Hello"
    )
    for _ in range(2):
        answer = adapter.send(adapter.encode([item]), items=1, idempotency_key="one", timeout=5)
        assert answer.verdict is Verdict.ACCEPTED
    assert sandbox.stats()["doubles"] == 1


def test_the_stack_takes_it_from_its_environment() -> None:
    code = (
        "import django; django.setup(); from messaging.providers.registry import adapters; print(*adapters().values())"
    )
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "devtools.stack_settings"}
    for path, name in (("", "ResendAdapter"), (PATH, "AtMostOnceAdapter")):
        shown = subprocess.run(
            [sys.executable, "-c", code],
            cwd=CHECKOUT,
            env=env | {"STACK_EMAIL_ADAPTER": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert f".{name} object" in shown
