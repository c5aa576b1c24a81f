"""What filters and output statements make of every kind of value, against the tables of the reference implementation."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from messaging.channels.email import Document, RenderError, compile_document
from messaging.channels.templates import liquid as engine
from messaging.channels.templates.filters import FILTER_NAMES, Spec, metered
from messaging.domain.errors import MessagingError

NOW = datetime(2026, 3, 14, 15, 9, 26, 535897, tzinfo=UTC)

VALUES: dict[str, Any] = {
    "nil_": None,
    "yes": True,
    "no": False,
    "int": 7,
    "half": 2.5,
    "one": 1.0,
    "big": 1e20,
    "tiny": 1e-5,
    "long": 1e15,
    "list": [1, "a", None, True, 1.0],
    "nested": ["a", ["b", ["c"]]],
    "hash": {"a": 1, "b": None},
    "rows": [{"n": "x", "p": 3}, {"n": "y"}, {"n": "Z", "p": 1}],
    "flags": [{"on": True}, {"on": 1}, {"on": 0}, {"on": False}, {}],
    "items": [{"discount": "5%"}, {}],
    "holes": [None, True],
    "abc": "abc",
    "csv": "a,b,,c,,",
    "none": [],
}


def rendered(source: str, *, html: bool = False, **more: Any) -> str:
    document = Document.parse(from_="a@x.org", subject="s", **{"html" if html else "text": f"<{source}>"})
    found = compile_document(document).render(VALUES | more, NOW)
    text = found.html if html else found.text
    assert text is not None
    return text[1:-1]


@pytest.mark.parametrize(
    ("source", "out"),
    [
        # Printing
        ("{{ nil_ }}|{{ yes }}|{{ no }}|{{ int }}|{{ half }}|{{ one }}", "|true|false|7|2.5|1.0"),
        ("{{ big }} {{ tiny }} {{ long }} {{ big | times: 1.5 }}", "1.0e+20 1.0e-05 1000000000000000.0 1.5e+20"),
        ("{{ list }}", "1atrue1.0"),
        ("{{ nested }}", "abc"),
        ("{{ hash }}", '{"a"=>1, "b"=>nil}'),
        ("{{ (1..3) }} {{ (3..1) }}", "1..3 3..1"),
        ("{{ none }}{{ empty }}{{ blank }}{% for i in list %}{{ forloop }}{% endfor %}", ""),
        ("{{ now }} {{ today }}", "2026-03-14 15:09:26 UTC 2026-03-14"),
        ("{% for pair in hash %}{{ pair }};{% endfor %}", "a1;b;"),
        ("{% for i in (1..3) %}{% cycle nil_, yes, one %}{% endfor %}", "true1.0"),
        ("{% capture c %}{{ yes }}{{ nil_ }}{{ list }}{% endcapture %}{{ c }}", "true1atrue1.0"),
        ("{% if 'is true' contains yes %}1{% endif %}{% if list contains 1 %}2{% endif %}", "12"),
        ("{% assign ones = '1' | split: ',' | map: 'x' %}{% if ones contains yes %}1{% endif %}", ""),
        # To text
        ("{{ items | map: 'discount' | join: ', ' }}", "5%, "),
        ("{{ holes | join }}", " true"),
        ("{{ list | join: '-' }}", "1-a--true-1.0"),
        ("{{ list | join: nil_ }}", "1atrue1.0"),
        ("{{ (1..3) | join: yes }}", "1true2true3"),
        ("{{ abc | append: nil_ }}{{ abc | append: yes }}{{ abc | append: big }}", "abcabctrueabc1.0e+20"),
        ("{{ abc | append: list }}", 'abc[1, "a", nil, true, 1.0]'),
        ("{{ nil_ | append: 'x' }}{{ no | append: 'x' }}{{ abc | prepend: no }}", "xfalsexfalseabc"),
        ("{{ yes | upcase }}{{ nil_ | capitalize }}{{ no | capitalize }}", "TRUEFalse"),
        ("{{ 'x true' | replace: yes, no }}{{ 'x true' | remove: yes }}", "x falsex "),
        ("{{ 'a nil' | replace: 'nil', nil_ }}|{{ 'aa' | replace_last: 'a', yes }}", "a |atrue"),
        (
            "{{ 'abc' | replace_last: 'a', 'x' }}{{ 'abc' | remove_last: 'a' }}{{ 'abc' | remove_first: 'a' }}",
            "xbcbcbc",
        ),
        ("{{ yes | split: 'u' | join: '+' }}", "tr+e"),
        ("{{ csv | split: ',' | size }}{{ '' | split: ',' | size }}{{ 'ab' | split: '' | join: '+' }}", "40a+b"),
        ("{{ ' a  b ' | split: ' ' | join: '+' }}", "a+b"),
        ("{{ yes | slice: 1, 2 }}{{ nil_ | slice: 0, 2 }}{{ 'abc' | slice: -5, 3 }}{{ 'abc' | slice: -2, 9 }}", "rubc"),
        ("{{ list | slice: 1, 2 | join: '+' }}", "a+"),
        ("{{ 'abcdef' | truncate: 5 }} {{ 'abc' | truncate: 3 }} {{ 'abcdef' | truncate: 1 }}", "ab... abc ..."),
        ("{{ 'abcdef' | truncate: 4, yes }} {{ 'abcdef' | truncate: 5, nil_ }}", "true abcde"),
        ("{{ 'a b' | truncatewords: 2 }} {{ 'a b c' | truncatewords: 2, no }}", "a b a bfalse"),
        ("{{ yes | url_encode }}{{ nil_ | url_encode }}{{ yes | base64_encode }}", "truedHJ1ZQ=="),
        ("{{ yes | size }}{{ nil_ | size }}{{ abc | size }}{{ hash | size }}{{ (1..3) | size }}", "00323"),
        ("{{ yes | escape }}{{ '<\"&' | escape }}{{ \"'\" | escape_once }}", "true&lt;&quot;&amp;&#39;"),
        ("{{ nil_ | default: 'd' }}{{ no | default: 'd' }}{{ no | default: 'd', allow_false: true }}", "ddfalse"),
        ("{{ none | default: yes }}{{ 0 | default: 'd' }}{{ '' | default: nil_ }}", "true0"),
        ("{{ nil_ | date: '%Y' }}|{{ yes | strip_html }}|{{ one | newline_to_br }}", "|true|1.0"),
        # Lists
        ("{{ rows | map: 'p' | join: ',' }}", "3,,1"),
        ("{{ holes | map: 'p' | size }}{{ nil_ | map: 'p' | size }}", "20"),
        ("{{ nil_ | concat: list | size }}{{ nested | concat: none | join }}", "5a b c"),
        ("{{ rows | sort: 'p' | map: 'n' | join }}", "Z x y"),
        ("{{ rows | sort: 'n' | map: 'n' | join }} {{ rows | sort_natural: 'n' | map: 'n' | join }}", "Z x y x y Z"),
        ("{{ '' | split: ',' | concat: holes | sort_natural | join: ',' }}", "true,"),
        ("{{ nil_ | sort }}{{ nil_ | reverse }}{{ nil_ | uniq }}{{ nil_ | first }}{{ none | last }}", ""),
        (
            "{{ flags | where: 'on' | size }}{{ flags | where: 'on', yes | size }}{{ flags | where: 'on', 1 | size }}",
            "311",
        ),
        ("{{ flags | reject: 'on' | size }}{{ flags | has: 'on', 0 }}{{ flags | find_index: 'on', no }}", "2true3"),
        ("{{ flags | find: 'on', 'x' }}{{ flags | find: 'on', 0 }}", '{"on"=>0}'),
        ("{{ list | uniq | join }} {{ list | concat: list | uniq | size }}", "1 a  true 1.0 5"),
        ("{{ holes | compact | join }} {{ rows | compact: 'p' | size }}", "true 2"),
        ("{{ hash | first }} {{ list | first }}{{ list | last }}{{ (1..3) | last }} {{ int | first }}", "a1 11.03 "),
        ("{{ rows | sum: 'p' }} {{ list | sum }} {{ nil_ | sum }} {{ nested | sum }}", "4 2.0 0 0"),
        # Numbers
        ("{{ yes | plus: 1 }} {{ nil_ | plus: 1 }} {{ '12 apples' | plus: 1 }} {{ '1.5' | plus: 1 }}", "1 1 13 2.5"),
        ("{{ 'nan' | plus: 1 }} {{ 'inf' | times: 2 }} {{ '1e3' | plus: 0 }} {{ yes | at_least: 0 }}", "1 0 1 0"),
        (
            "{{ 4 | times: 1.0 }} {{ 0.1 | plus: 0.2 }} {{ 3 | minus: 3.0 }} {{ 20 | divided_by: 7.0 }}",
            "4.0 0.3 0.0 2.857142857142857",
        ),
        ("{{ 7 | divided_by: 2 }} {{ -7 | divided_by: 2 }} {{ 10 | divided_by: 2.5 }}", "3 -4 4.0"),
        ("{{ -7 | modulo: 3 }} {{ -5.5 | modulo: 3 }} {{ 5.5 | modulo: -3 }}", "2 0.5 -0.5"),
        (
            "{{ half | round }} {{ -2.5 | round }} {{ 1.25 | round: 1 }} {{ 5 | round: 2 }} {{ one | round: 2 }}",
            "3 -3 1.3 5 1.0",
        ),
        ("{{ 5666.78 | round: -2 }} {{ 1250 | round: -2 }} {{ big | round: 3 }}", "5700 1300 1.0e+20"),
        (
            "{{ half | ceil }}{{ half | floor }} {{ '-1.5' | abs }} {{ -1 | abs }} {{ 2 | at_most: 1.5 }}",
            "32 1.5 1 1.5",
        ),
    ],
)
def test_as_the_reference_implementation_writes_it(source: str, out: str) -> None:
    assert rendered(source) == out


def test_html_escapes_what_is_written_out() -> None:
    assert rendered("{{ v }}", html=True, v=["<", {"<b>": None}]) == "&lt;{&#34;&lt;b&gt;&#34;=&gt;nil}"
    assert rendered("{{ v | join: ', ' }}{{ yes }}{{ nil_ }}", html=True, v=["<", None]) == "&lt;, true"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab1.- ", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab1"), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.lists(
    st.sampled_from(["v", "w", "1", "-2", "1.5", "'a'", "nil", "true", "e", "(1..3)", "''"]), max_size=2
)
CALLS = st.tuples(st.sampled_from(sorted(FILTER_NAMES)), ARGUMENTS).map(
    lambda call: call[0] + (": " + ", ".join(call[1]) if call[1] else "")
)
FRAMES = [
    "{{ %s }}",
    "{%% assign x = %s %%}{{ x }}{{ x | append: x }}",
    "{%% capture x %%}{{ %s }}{%% endcapture %%}{{ x }}",
    "{%% assign x = %s %%}{%% for i in x %%}{{ i }}{{ i[0] }}{{ forloop }}{%% endfor %%}{%% cycle x, v %%}",
    "{%% assign x = %s %%}{%% if x contains v or x == w %%}{{ x.first }}{%% endif %%}{%% case x %%}{%% when v %%}{%% endcase %%}",
    "{%% assign x = %s %%}{%% tablerow i in x cols: 2 limit: 3 %%}{{ i }}{{ tablerowloop }}{%% endtablerow %%}{{ (1..x) }}",
]
PYTHON = re.compile(
    r"None|True|False|Undefined|Decimal|Markup|Loop|<class|object at|\{'|\['|\('|\binf\b|\bnan\b|datetime"
)


@settings(deadline=None, max_examples=400)
@given(
    st.lists(CALLS, max_size=4),
    st.sampled_from(["v", "w", "now", "(1..3)"]),
    st.sampled_from(FRAMES),
    JSON,
    JSON,
    st.booleans(),
)
@example(["join: w"], "v", FRAMES[0], [None, True], None, False)
def test_no_filter_speaks_python(calls: list[str], start: str, frame: str, v: Any, w: Any, html: bool) -> None:
    """And none raises anything but an error of the template: `render_bug` says that one did."""
    try:
        found = rendered("{% assign e = empty %}" + frame % " | ".join([start, *calls]), html=html, v=v, w=w)
    except RenderError as error:
        found, code = "", error.code
    else:
        code = "template_error"
    assert code in ERRORS
    assert not PYTHON.search(found)


ERRORS = {
    "template_error",
    "template_too_costly",
    "undefined_variable",
    "rendered_too_large",
    "rendered_invalid_text",
}


# --- What is not the template's fault ---------------------------------------------------------------------------------


def test_a_fault_of_ours_is_logged_as_one_and_costs_one_rendering(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(value: object) -> object:
        raise KeyError(f"secret {value}")

    monkeypatch.setitem(engine._PLAIN.filters, "size", metered(Spec(broken)))
    with pytest.raises(RenderError) as caught:
        rendered("\n{{ v | size }}", v="xyzzy")
    assert (caught.value.code, caught.value.part) == ("render_bug", "text")
    assert caught.value.detail.startswith("line 2")
    [record] = caplog.records
    assert (record.levelname, record.getMessage(), record.__dict__["type"]) == ("ERROR", "render_bug", "KeyError")
    assert record.__dict__["place"].startswith("test_reference.py:")
    assert "xyzzy" not in str(record.__dict__) + str(caught.value)
    assert rendered("{{ v }}", v="xyzzy") == "xyzzy"


def test_a_fault_of_ours_is_no_error_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine._PLAIN.filters, "size", metered(Spec(lambda value: value[0])))  # type: ignore[index]
    template = compile_document(Document.parse(from_="a@x.org", subject="s", text="{{ v | size }}"))
    with pytest.raises(MessagingError) as caught:
        template.check({"v": ""}, NOW)
    assert (caught.value.code, caught.value.status) == ("render_bug", 500)


@pytest.mark.parametrize(
    "source", ["{{ v | base64_decode }}", "{{ v | url_decode | base64_url_safe_decode }}", "{{ v.a.b }}"]
)
def test_what_the_library_raises_for_a_value_is_the_templates(source: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RenderError) as caught:
        rendered(source, v="gICA")
    assert caught.value.code in ("template_error", "undefined_variable")
    assert not caplog.records
