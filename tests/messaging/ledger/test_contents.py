"""What a process keeps of compiled contents is bounded by the memory that it takes, not by the length of its texts."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from messaging.channels.email import Document, compile_document
from messaging.channels.templates import liquid
from messaging.ledger import contents
from messaging.ledger.contents import Compiled

BOUND = 1_000_000
LIQUID = {
    "a mail": "<p>Hello {{ name }}, your order {{ order }} of {{ day | date: '%F' }} is {% if paid %}paid{% endif %}.</p>\n",
    "dense": "{{ a }}",
    "sparse": "x" * 300 + "{{ a }}",
    "a table": "{% for r in rows %}<td>{{ r.name | upcase }}</td><td>{{ r.price | times: 2 | round: 2 }}</td>{% endfor %}\n",
    "assigned": "{% assign x = y | append: 'z' %}",
    "conditions": "{% if a == 'x' and b != 2 %}y{% elsif c contains 'z' %}w{% endif %}",
    "filters": "{{ a | append: 'b' | upcase | strip | replace: 'a', 'b' }}",
}


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "KEPT_BYTES", BOUND)
    monkeypatch.setattr(liquid, "_RECENT_BYTES", 0)  # it would hold some of the same


def compiled(number: int, unit: str, **values: Any) -> Compiled:
    body = unit * (6_000 // len(unit)) + f"<!-- {number:06} -->"
    # The copy is what a document from the database has: a text of its own.
    document = Document.from_bytes(Document.parse(from_="a@x.org", subject="s", html=body, **values).to_bytes())
    template = compile_document(document)
    return Compiled(document, template, template.held())


def grown(kept: contents._Kept, make: Callable[[int], Compiled], enough: int) -> int:
    """By how many bytes the memory of the process grows when `kept` is filled far beyond its bound."""
    make(-1)  # what is imported and interned at the first use
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        for number in range(enough):
            kept.put({number: make(number)})
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", LIQUID)
def test_filling_it_takes_the_memory_that_it_may_hold(fresh: None, kind: str) -> None:
    kept = contents._Kept()
    one = compiled(-1, LIQUID[kind]).size
    memory = grown(kept, lambda number: compiled(number, LIQUID[kind]), BOUND // one + 3)
    assert len(kept._by_id) < BOUND // one + 3  # it was full
    assert 0.7 * kept._bytes < memory < 1.3 * kept._bytes
    assert memory < 1.3 * BOUND


@pytest.mark.parametrize("unit", ["x" * 90, "漢" * 90, "😀" * 90])
def test_a_literal_costs_little_more_than_its_text(fresh: None, unit: str) -> None:
    kept = contents._Kept()
    memory = grown(kept, lambda number: compiled(number, unit, literal=True), 100)
    assert 0.7 * kept._bytes < memory < 1.3 * kept._bytes
    assert compiled(0, unit, literal=True).size < 6_000 * max(1, len(unit.encode()) // 90) + 4_000


def test_the_last_one_is_kept_however_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "KEPT_BYTES", 1)
    kept = contents._Kept()
    for number in range(3):
        kept.put({number: compiled(number, "{{ a }}")})
    assert list(kept.get([0, 1, 2])) == [2]


def test_what_was_compiled_last_is_bounded_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liquid, "_RECENT_BYTES", BOUND)
    recent = liquid._Recent()
    monkeypatch.setattr(liquid, "_recent", recent)
    for number in range(4):
        compiled(number, LIQUID["dense"])
    assert len(recent._parts) == 1
    assert recent._bytes == sum(part.held for part in recent._parts.values()) < BOUND
