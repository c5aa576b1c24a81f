"""What is judged certain never fails: rows that are not rendered when a blast is planned could be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.security.hashing import canonical_json
from messaging.channels.email import Document, RenderError, compile_document
from messaging.channels.email.certain import Certainty, certainty_of

NOW = datetime(2026, 3, 14, tzinfo=UTC)


def judged(text: str = "x", **fields: Any) -> Certainty:
    return certainty_of(
        compile_document(Document.parse(**{"from_": "a@x.org", "subject": "s", "text": text, **fields}))
    )


@pytest.mark.parametrize(
    "text",
    [
        "Hello {{ name }}",
        "Hello {{ name | default: 'friend' | strip | escape }}!",
        "{% if name and vip == true %}Dear{% else %}Hello{% endif %} {{ name | upcase | append: '!' }}.",
        "{% comment %}{{ x | divided_by: 0 }}{% endcomment %}Hello",
    ],
)
def test_an_ordinary_template_is_certain(text: str) -> None:
    assert judged(text, subject="News for {{ name }}", html="<p>" + text).bodies > 500
    assert judged(text, subject="News for {{ name }}").lines > 50


@pytest.mark.parametrize(
    "text",
    [
        "x{{ a | divided_by: b }}",
        "x{{ a | times: 2 }}",
        "x{{ a.b }}",
        "x{{ a[b] }}",
        "x{{ a | date: '%Y' }}",
        "x{{ a | base64_decode }}",
        "x{{ a | append: b, c }}",
        "x{% if a < b %}{% endif %}",
        "x{% if a contains b %}{% endif %}",
        "x{% for i in a %}{{ i }}{% endfor %}",
        "x{% assign a = b %}",
        "x{% if a %}{{ b | sort }}{% endif %}",
        "x{% break %}",
        "{{ a }}",
        " {{ a }} ",
        "{% if a %}x{% endif %}",
    ],
)
def test_what_may_fail_or_be_empty_is_not(text: str) -> None:
    assert judged(text).bodies < 0
    assert judged(subject=text).lines < 0


def test_a_header_may_be_empty_but_not_long() -> None:
    assert 0 < judged(headers={"X-A": "{{ a }}"}).lines < 998


def test_a_body_that_is_there_anyway_may_have_an_empty_other() -> None:
    assert judged("{{ a }}", html="<p>x").bodies > 0


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('a"<&😀ŉß ', max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("ab", min_size=1, max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
CALLS = st.sampled_from(
    ["strip", "strip_html", "squish", "safe", "first", "last", "size", "upcase", "capitalize", "escape", "escape_once"]
) | st.sampled_from(
    [
        "strip_newlines",
        "base64_encode",
        "url_encode",
        "newline_to_br",
        "default: 'x'",
        "append: w",
        "prepend: v",
        "times: 2",
    ]
)
FRAMES = [
    "x{{ %s }}",
    "{{ %s }}",
    "x{%% if v == w or %s %%}a{%% endif %%}",
    "x{%% unless v %%}{{ %s }}{%% endunless %%}",
]


@settings(deadline=None, max_examples=300)
@given(st.lists(CALLS, max_size=5), st.sampled_from(FRAMES), st.integers(1, 40), VALUES, VALUES)
def test_certain_means_that_no_value_makes_it_fail(calls: list[str], frame: str, times: int, v: Any, w: Any) -> None:
    call = "v" if frame.startswith("x{%% if") else " | ".join(["v", *calls])
    source = frame % call * times
    fields = {"subject": source, "html": source, "text": source, "headers": {"X-A": source}}
    try:
        document = Document.parse(from_="a@x.org", **fields)
    except Exception:  # noqa: BLE001  (too long for a subject)
        return
    template = compile_document(document)
    found, variables = certainty_of(template), {"v": v, "w": w}
    size = len(canonical_json(variables))
    text = sum(len(value) for value in variables.values() if isinstance(value, str))
    only_text = all(isinstance(value, str) for value in variables.values())
    if size <= found.bodies and only_text and text <= found.lines:
        try:
            template.render(variables, NOW)
        except RenderError as error:
            pytest.fail(error.code)
