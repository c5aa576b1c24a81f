"""docs/adding-a-provider.md is true: its adapter passes the conformance suite, with the test that it shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from messaging.providers.base import Adapter, Verdict

GUIDE = Path(__file__).parents[3] / "docs" / "adding-a-provider.md"


def _module(name: str, source: str) -> ModuleType:
    """The source as the module `name`, padded so that a traceback names the line of the guide."""
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, str(GUIDE), "exec"), module.__dict__)
    return module


def _blocks() -> list[str]:
    text = GUIDE.read_text(encoding="utf-8")
    return [
        "\n" * text.count("\n", 0, found.start(1)) + found[1]
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


_adapter, _test = _blocks()
texto = _module("messaging.providers.texto", _adapter)

#: The guide's own test class: pytest collects it here.
TestConformance = _module("tests.messaging.providers.test_texto", _test).TestConformance


def test_the_guide_names_every_verdict() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    missing = [verdict.name for verdict in Verdict if f"`{verdict.name}`" not in text]
    assert not missing


def test_the_guides_adapter_needs_its_key() -> None:
    adapter: Adapter = texto.TextoAdapter(api_key="", base_url="http://127.0.0.1:1")
    answer = adapter.send(b"{}", items=1, idempotency_key="k", timeout=1.0)
    assert (answer.verdict, answer.code) == (Verdict.CREDENTIAL, "missing_api_key")


@pytest.mark.parametrize("name", ["messaging.providers.texto", "tests.messaging.providers.test_texto"])
def test_the_example_is_no_part_of_the_project(name: str) -> None:
    assert not (GUIDE.parents[1] / (name.replace(".", "/") + ".py")).exists()
