"""Templates: what they render to, that they always render to the same, and that no template costs more than allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messaging.channels.email import Document, Rendered, RenderError, Template, compile_document
from messaging.channels.templates import liquid as engine
from messaging.channels.templates import tags
from messaging.channels.templates.dates import strftime, to_datetime
from messaging.channels.templates.filters import FILTER_NAMES, MAX_VALUE, Budget
from messaging.channels.templates.liquid import compile_source
from messaging.channels.templates.runtime import BUDGET, MAX_OUTPUT, MAX_RANGE, STEP
from messaging.domain.errors import InvalidInput

NOW = datetime(2026, 3, 14, 15, 9, 26, 535897, tzinfo=UTC)


def template(text: str = "x", **fields: Any) -> Template:
    return compile_document(Document.parse(**{"from_": "a@x.org", "subject": "s", "text": text, **fields}))


def text(source: str, **variables: Any) -> str | None:
    return template(source).render(variables, NOW).text


def html(source: str, **variables: Any) -> str | None:
    return template(text=None, html=source).render(variables, NOW).html


def failure(source: str, **variables: Any) -> RenderError:
    with pytest.raises(RenderError) as caught:
        text(source, **variables)
    return caught.value


# --- What comes out ---------------------------------------------------------------------------------------------------


def test_each_part_is_rendered_in_its_own_way() -> None:
    found = template(
        subject="{{ n }} & co", text="t {{ n }}", html="<p>{{ n }}</p>", headers={"X-A": "{{ n }}", "X-B": "b"}
    ).render({"n": '<O\'Hara> & "q"'}, NOW)
    assert found == Rendered(
        subject='<O\'Hara> & "q" & co',
        html="<p>&lt;O&#39;Hara&gt; &amp; &#34;q&#34;</p>",
        text='t <O\'Hara> & "q"',
        headers={"X-A": '<O\'Hara> & "q"', "X-B": "b"},
    )


def test_a_literal_document_is_itself() -> None:
    fields = {"subject": "{{ a }}", "html": "<p>{% b", "text": "{{ c", "headers": {"X-A": "{{"}}
    literal = template(**fields, literal=True)
    assert literal.render({}, NOW) == Rendered(fields["subject"], "<p>{% b", "{{ c", {"X-A": "{{"})
    assert literal.render({}, NOW) is literal.render({}, NOW)
    assert literal.names() == frozenset()


def test_line_breaks_of_a_body_stay_as_they_are() -> None:
    assert text("a\r\nb {{ n }}\n\rc", n="x\r\ny") == "a\r\nb x\r\ny\n\rc"


@pytest.mark.parametrize(
    ("source", "out"),
    [
        ("{{ a }}", "1"),
        ("{{ u.name }}{{ u['first name'] }}", "AdaAugusta"),
        ("{{ l[0] }}{{ l.last }}{{ l.size }}{{ u.list.first }}", "x33z"),
        ("{% if a == 1 and s contains 'b' %}yes{% else %}no{% endif %}", "yes"),
        ("{% unless a == 1 %}no{% else %}yes{% endunless %}", "yes"),
        ("{% case s %}{% when 'a' %}1{% when 'abc', 'd' %}2{% else %}3{% endcase %}", "2"),
        ("{% for x in l %}{{ forloop.index }}{{ x }}{% unless forloop.last %},{% endunless %}{% endfor %}", "1x,2y,33"),
        ("{% for x in l reversed %}{{ x }}{% endfor %}", "3yx"),
        ("{% for x in l limit: 2 offset: 1 %}{{ x }}{% endfor %}", "y3"),
        ("{% for x in (1..3) %}{{ x }}{% break %}{% endfor %}{% for x in e %}{% else %}none{% endfor %}", "1none"),
        ("{% for p in u.map %}{{ p[0] }}={{ p[1] }};{% endfor %}", "k=v;"),
        ("{% assign x = a | plus: 2 %}{{ x }}{% capture c %}[{{ x }}]{% endcapture %}{{ c }}", "3[3]"),
        ("{% increment i %}{% increment i %}{% decrement j %}{% cycle 'p', 'q' %}{% cycle 'p', 'q' %}", "01-1pq"),
        ("{% comment %}{{ nothing }}{% nope %}{% endcomment %}{% # note %}{% raw %}{{ a }}{% endraw %}", "{{ a }}"),
        ("{%- if true -%} x {%- endif -%}", "x"),
        ("{{ nothing | default: 'friend' }}{{ n | default: 'nil' }}{{ e | default: 'none' }}", "friendnilnone"),
        ("{% assign x = nothing | default: nil %}{% if x %}{% else %}absent{% endif %}", "absent"),
        ("{{ s | upcase | append: '!' | prepend: '>' | replace: 'B', '-' }}", ">A-C!"),
        ("{{ 'a,b,c' | split: ',' | reverse | join: ';' }}", "c;b;a"),
        ("{{ '<p>a</p><script>b</script><!-- c -->d < e' | strip_html }}", "ad < e"),
        ("{{ '<STYLE>b</style>a<script>x' | strip_html }}", "ax"),
        (
            "{{ rows | map: 'v' | join: '-' }}{{ rows | where: 'v', 2 | size }}{{ rows | sum: 'v' }}",
            "1-2-114",
        ),
        ("{{ rows | map: 'none' | append: '' }}", "[nil, nil, nil]"),
        ("{{ l | sort_natural | join }}{{ 'b a' | split: ' ' | sort | first }}{{ l | uniq | size }}", "3 x ya3"),
        ("{{ 7 | divided_by: 2 }} {{ 7.0 | divided_by: 2 }} {{ 5 | modulo: 3 }} {{ 1.25 | round: 1 }}", "3 3.5 2 1.3"),
        ("{% tablerow x in (1..2) cols: 1 %}{{ x }}{% endtablerow %}", None),
        ("{% ifchanged %}a{% endifchanged %}{% ifchanged %}a{% endifchanged %}", "a"),
    ],
)
def test_the_language(source: str, out: str | None) -> None:
    variables = {
        "a": 1,
        "s": "abc",
        "n": None,
        "e": [],
        "l": ["x", "y", "3"],
        "u": {"name": "Ada", "first name": "Augusta", "list": ["z"], "map": {"k": "v"}},
        "rows": [{"v": 1}, {"v": 2}, {"v": 1}],
    }
    found = text(source, **variables)
    if out is not None:
        assert found == out


def test_a_variable_may_be_called_anything() -> None:
    for name in ("partial", "forloop", "now", "size", "first", "if_", "context", "environment", "self"):
        assert text("{{ " + name + " }}", **{name: "v"}) == "v"


def test_names() -> None:
    found = template(
        subject="{{ s | append: t }}",
        text="{% assign l = b %}{{ l }}{% for x in c.d[e] %}{{ x }}{{ forloop.index }}{% endfor %}{{ now }}{{ 'today' }}",
        html="{% if f %}{{ g['h i'] }}{% endif %}",
        headers={"X-A": "{{ k }}"},
    )
    assert found.names() == {"s", "t", "b", "c", "e", "f", "g", "k"}
    assert found.subject_names() == {"s", "t", "k"}


# --- Refused when compiled --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("a\n\n{{ b", "template_syntax", "line 3"),
        ("a\n{% if b", "template_syntax", "line 2"),
        ("a\n{% if b %}", "template_syntax", "line"),
        ("\n{{ a b }}", "template_syntax", "line 2"),
        ("{{ }}", "template_syntax", "line 1"),
        ("{{ a | }}", "template_syntax", "line 1"),
        ("{% raw %}{{ a }}", "template_syntax", "raw is never closed"),
        ("{{ [a] }}", "template_syntax", "write the variable's name out"),
        ("\n{{ a | shuffle }}", "unknown_filter", "line 2: there is no filter shuffle"),
        ("{% assign b = a | sample: 2 %}", "unknown_filter", "sample"),
        ("{% if true %}{% for x in y %}{{ x | escapejs }}{% endfor %}{% endif %}", "unknown_filter", "escapejs"),
        ("\n{% include 'a' %}", "unknown_tag", "line 2: there is no tag include"),
        ("{% render 'a' %}", "unknown_tag", "render"),
        ("{% liquid\n echo a %}", "unknown_tag", "liquid"),
        ("{% echo a %}", "unknown_tag", "echo"),
        ("{% doc %}{% enddoc %}", "unknown_tag", "doc"),
        ("{% comment %}{% doc %}{% endcomment %}", "unknown_tag", "doc"),
        ("{% extends 'a' %}", "unknown_tag", "extends"),
        ("{% endif %}", "unknown_tag", "endif"),
        ("{% if a %}" * 31 + "{% endif %}" * 31, "template_too_complex", "nested"),
        ("{{ a }}" * (engine.MAX_TAGS + 1), "template_too_complex", "too many"),
        ("{% comment %}" + "{{ a }}" * engine.MAX_TAGS + "{% endcomment %}", "template_too_complex", "too many"),
        ("{{ a }}" * (engine.MAX_WEIGHT // (4 * STEP) + 1), "template_too_complex", "too many parts"),
        ("{{" + " " * 2300 + "a }}", "template_too_complex", "too long"),
        ("{% if " + "a and " * 50 + "a %}{% endif %}", "template_too_complex", "nested too deeply"),
        ("{{ " + "a[" * 45 + "b" + "]" * 45 + " }}", "template_too_complex", "nested too deeply"),
    ],
)
def test_refused_when_parsed(source: str, code: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        template(source)
    assert (caught.value.code, caught.value.field) == (code, "text")


def test_there_are_no_more_tags_and_filters_than_meant() -> None:
    """An upgrade of the engine that brings a tag or filter does not bring it in here; one that loses one shows."""
    for environment in (engine._PLAIN, engine._HTML):
        assert set(environment.tags) == tags.TAGS
        assert set(environment.filters) == FILTER_NAMES
        assert len(FILTER_NAMES) == 61
        assert not {"shuffle", "sample", "escapejs", "json", "money"} & set(environment.filters)


# --- Errors of rendering ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("\n{{ user }}", "line 2: there is no value for user"),
        ("{{ user.name }}", "line 1: there is no value for user.name"),
        ("{{ known.name.first_part }}", "there is no value for known.name.first_part"),
        ("{% if user == nil %}{% endif %}", "there is no value for user"),
        ("{% if user %}{% endif %}", "there is no value for user"),
        ("{% for x in user.items %}{% endfor %}", "there is no value for user.items"),
        ("{{ known.list[9] }}", "there is no value for known.list"),
        ("{{ known[secret] }}", "there is no value for known"),
        ("{% if true %}\n\n{{ 'a' | append: user }}{% endif %}", "line 3: there is no value for user"),
        ("{{ known.list | where: 'a', user }}", "there is no value for user"),
        ("{{ 1.5 | round: user }}", "there is no value for user"),
        ("{{ user | upcase }}", "there is no value for user"),
        ("{{ user | date: '%Y' }}", "there is no value for user"),
        ("{{ known.missing }}", "there is no value for known.missing"),
    ],
)
def test_undefined_variables_are_named(source: str, detail: str) -> None:
    error = failure(source, known={"list": [1]}, secret="xyzzy")
    assert (error.code, error.part) == ("undefined_variable", "text")
    assert detail in error.detail
    assert "xyzzy" not in str(error)


@pytest.mark.parametrize(
    "source",
    [
        "{{ secret | divided_by: 0 }}",
        "{{ secret | modulo: 0 }}",
        "{{ secret | date: '%Y' }}",
        "{{ secret | slice: secret }}",
        "{{ secret | truncate: secret }}",
        "{{ secret | append }}",
        "{{ secret | append: 'a', 'b' }}",
        "{{ secret | append: context: 1 }}",
        "{{ secret | append: environment: 1 }}",
        "{{ secret | base64_decode }}",
        "{{ '_' | append: '_' | base64_url_safe_decode }}",
        "{{ 'gICA' | base64_decode }}",
        "{{ mixed | sort }}",
        "{{ mixed | compact: 'a' }}",
        "{{ mixed | uniq: 'a' }}",
        "{{ huge | modulo: 7 }}",
        "{{ huge | times: huge }}",
        "{{ digits | plus: 1 }}",
        "{{ mixed | concat: 1 }}",
        "{% break %}",
        "{% for x in mixed limit: secret %}{% endfor %}",
        "{% for x in mixed %}{{ forloop | join }}{% endfor %}",
        "{% tablerow x in mixed %}{{ tablerowloop | sum }}{% endtablerow %}",
        "{% if secret < 1 %}{% endif %}",
        "{% if 1 contains 1 %}{% endif %}",
        "{{ 'x' | date }}",
        "{{ mixed | date: '%Y' }}",
    ],
)
def test_what_a_filter_cannot_do_is_an_error_of_the_template(source: str) -> None:
    error = failure(source, secret="xyzzy", mixed=[1, "xyzzy", {"b": 1}, None], huge=1.5e300, digits="9" * 101)
    assert error.code == "template_error"
    assert error.detail.startswith("line 1")
    assert "xyzzy" not in str(error)


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "a\u2028b", "\x85"])
@pytest.mark.parametrize("part", ["subject", "headers"])
def test_a_line_break_by_value_is_refused(value: str, part: str) -> None:
    fields: dict[str, Any] = {"subject": "{{ v }}"} if part == "subject" else {"headers": {"X-A": "{{ v }}"}}
    with pytest.raises(RenderError) as caught:
        template(**fields).render({"v": value}, NOW)
    assert (caught.value.code, caught.value.part) == ("rendered_header_injection", part)


def test_filters_cannot_make_a_line_break_either() -> None:
    for source in ("{{ '%0D%0AX: y' | url_decode }}", "{{ 'DQo=' | base64_decode }}", "{{ 'now' | date: '%n' }}x"):
        with pytest.raises(RenderError) as caught:
            template(subject=source).render({}, NOW)
        assert caught.value.code == "rendered_header_injection"
    assert failure("{{ '%00' | url_decode }}").code == "rendered_invalid_text"


@pytest.mark.parametrize(
    ("fields", "variables", "code", "part"),
    [
        ({"subject": "{{ v }}"}, {"v": " "}, "rendered_empty_subject", "subject"),
        ({"subject": "{{ v }}"}, {"v": "x" * 999}, "rendered_too_large", "subject"),
        ({"headers": {"X-A": "{{ v }}"}}, {"v": "x" * 999}, "rendered_too_large", "headers"),
        ({"text": "{{ v }}"}, {"v": ""}, "rendered_empty_body", "text"),
        ({"text": "x" * 999_000 + "{{ v }}"}, {"v": "x" * 1_001}, "rendered_too_large", "text"),
        ({"text": "x" * 999_000 + "{{ v }}"}, {"v": "é" * 501}, "rendered_too_large", "text"),
        ({"text": "x" * 600_000, "html": "x" * 399_000 + "{{ v }}"}, {"v": "x" * 1_001}, "rendered_too_large", "text"),
    ],
)
def test_limits_of_what_is_rendered(fields: dict[str, Any], variables: dict[str, Any], code: str, part: str) -> None:
    with pytest.raises(RenderError) as caught:
        template(**fields).render(variables, NOW)
    assert (caught.value.code, caught.value.part) == (code, part)


def test_check_is_render_in_the_words_of_an_input_error() -> None:
    checked = template("{{ a | divided_by: b }}", subject="{{ s }}")
    checked.check({"a": 1, "b": 1, "s": "x"}, NOW)
    for variables, code, field in (
        ({"a": 1, "b": 0, "s": "x"}, "template_error", "text"),
        ({"a": 1, "s": "x"}, "undefined_variable", "variables"),
        ({"a": 1, "b": 1, "s": "x\ny"}, "rendered_header_injection", "variables"),
        ({"a": 1, "b": 1, "s": ""}, "rendered_empty_subject", "subject"),
    ):
        with pytest.raises(InvalidInput) as caught:
            checked.check(variables, NOW)
        assert (caught.value.code, caught.value.field) == (code, field)


def test_a_naive_time_is_a_bug() -> None:
    with pytest.raises(ValueError, match="aware"):
        template("{{ a }}").render({"a": 1}, NOW.replace(tzinfo=None))


# --- Hostile values ---------------------------------------------------------------------------------------------------

SAFE_FILTERS = [
    "append: v",
    "prepend: v",
    "replace: 'a', v",
    "replace_first: 'a', v",
    "replace_last: 'a', v",
    "remove: 'x'",
    "upcase",
    "downcase",
    "capitalize",
    "escape",
    "escape_once",
    "strip",
    "lstrip",
    "rstrip",
    "squish",
    "strip_newlines",
    "newline_to_br",
    "strip_html",
    "truncate: 9",
    "truncate: 3, v",
    "truncatewords: 2, v",
    "url_encode",
    "url_decode",
    "base64_encode",
    "base64_decode",
    "slice: 0, 5",
    "split: ' '",
    "split: ''",
    "join: v",
    "first",
    "last",
    "reverse",
    "sort",
    "uniq",
    "compact",
    "concat: w",
    "map: v",
    "where: v",
    "default: v",
    "size",
    "date: '%Y'",
    "date: v",
]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(SAFE_FILTERS), max_size=4),
    st.sampled_from(["v", "w", "c", "'a'", "w[0]"]),
    st.text("<>&'\"ab %3C;lt\n", max_size=20) | st.just("PHNjcmlwdD4=") | st.just("%3Cscript%3E"),
)
def test_no_value_brings_a_tag_into_html(filters: list[str], start: str, value: str) -> None:
    source = "{% capture c %}a{{ v }}{% endcapture %}{{ " + " | ".join([start, *filters]) + " }}."
    try:
        found = html(source, v=value, w=[value, {value or "k": value}])
    except RenderError:
        return
    assert found is not None
    assert "<" not in found.replace("<br />", "")


def test_safe_is_the_one_way_to_put_markup_into_html() -> None:
    assert html("{{ v | safe }}", v="<b>") == "<b>"


# --- The same everywhere ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "pattern", "out"),
    [
        ("now", "%Y-%m-%d %H:%M:%S.%L %z %Z", "2026-03-14 15:09:26.535 +0000 UTC"),
        ("today", "%F", "2026-03-14"),
        ("2026-01-02", "%A %-d %B %y, %j %U %W %V %u %w", "Friday 2 January 26, 002 00 00 01 5 5"),
        ("2026-01-02T03:04:05", "%T %I:%M %p %l%P %k %e", "03:04:05 03:04 AM  3am  3  2"),
        ("2026-01-02T23:04:05+02:30", "%H %z %s", "23 +0230 1767386045"),
        (
            "2026-01-02T23:04:05Z",
            "%c|%x|%X|%D|%R|%r|%v",
            "Fri Jan  2 23:04:05 2026|01/02/26|23:04:05|01/02/26|23:04|11:04:05 PM| 2-JAN-2026",
        ),
        ("20260102", "%F", "2026-01-02"),
        (1767386045, "%F %T", "2026-01-02 20:34:05"),
        ("1767386045", "%F %T", "2026-01-02 20:34:05"),
        (0.5, "%F %L", "1970-01-01 500"),
        ("March 14, 2026", "%F", "2026-03-14"),
        ("mar 14 2026", "%F", "2026-03-14"),
        ("14 March 2026", "%F", "2026-03-14"),
        ("Sat, 14 Mar 2026 15:09:26 -0500", "%F %T %z", "2026-03-14 15:09:26 -0500"),
        ("2026-01-02", "%^a %^B %_m %0e %% %Q %", "FRI JANUARY  1 02 % %Q %"),
        ("0099-01-02", "%Y %C %y", "0099 00 99"),
        ("", "%Y", ""),
        (None, "%Y", ""),
    ],
)
def test_date(value: object, pattern: str, out: str) -> None:
    assert text("{{ v | date: p }}.", v=value, p=pattern) == out + "."


@pytest.mark.parametrize(
    "value",
    ["soon", "03/04/2026", "14 Foo 2026", "31 February 2026", "2026-13-01", "9" * 12, True, [1], {}, "x" * 65, 1e300],
)
def test_what_is_no_date_is_an_error(value: object) -> None:
    assert failure("{{ v | date: '%Y' }}", v=value).code == "template_error"


@settings(deadline=None)
@given(st.datetimes(min_value=datetime(1000, 1, 1)))
def test_date_agrees_with_the_c_library(at: datetime) -> None:
    pattern = "%Y %m %d %e %j %H %I %M %S %p %A %a %B %b %U %W %V %G %u %w %y %C %F %T %D %R"
    assert strftime(at.replace(tzinfo=UTC), pattern) == at.strftime(pattern)


@settings(deadline=None)
@given(st.text(max_size=70))
def test_to_datetime_never_raises(value: str) -> None:
    found = to_datetime(value, NOW)
    assert found is None or found.tzinfo is not None


def test_now_is_the_time_given() -> None:
    source = "{{ 'now' | date: '%s' }} {{ now | date: '%s' }} {{ today | date: '%F' }} {{ now }} {{ today }}"
    moved = NOW.astimezone(timezone(timedelta(hours=9)))
    expected = f"{int(NOW.timestamp())} {int(NOW.timestamp())} 2026-03-14 2026-03-14 15:09:26 UTC 2026-03-14"
    assert template(source).render({}, NOW).text == template(source).render({}, moved).text == expected


DETERMINISTIC = """
import sys, json
from datetime import datetime
from messaging.channels.email import Document, compile_document
document = Document.from_bytes(bytes.fromhex(sys.argv[1]))
found = compile_document(document).render(json.loads(sys.argv[2]), datetime.fromisoformat(sys.argv[3]))
print(json.dumps([found.subject, found.html, found.text, dict(found.headers), document.to_bytes().hex()]))
"""


def test_other_processes_render_the_same() -> None:
    """Another hash seed, another time zone, another locale: the same bytes."""
    everything = (
        "{{ now }} {{ today }} {{ 'now' | date: '%c %s %Z %A' }} {{ 0 | date: '%F %T' }} {{ d | date: '%c' }} "
        "{{ m }} {{ m | append: '' }} {{ l | uniq | join }} {{ l | map: 'x' | append: '' }} {{ f | times: 1.1 }} "
        "{% for p in m %}{{ p }}{% endfor %}{% cycle m: l, m %}{% for i in (1..2) %}{{ forloop }}{{ l | sort }}{% endfor %}"
        "{% tablerow i in (1..2) %}{{ tablerowloop }}{% endtablerow %}{{ empty }}{{ blank }}{{ (1..3) }}"
    )
    document = Document.parse(
        from_="a@x.org",
        subject="{{ 'now' | date: '%c' }}",
        html=everything,
        text=everything,
        headers={"X-A": "{{ m }}"},
    )
    variables = {"m": {c: c for c in "zyxabc"}, "l": ["b", "a", "b"], "f": 0.1, "d": "2026-07-01T00:00:00"}
    outputs = set()
    for zone, seed in (("UTC", "0"), ("Asia/Kathmandu", "1"), ("America/St_Johns", "2")):
        ran = subprocess.run(
            [sys.executable, "-c", DETERMINISTIC, document.to_bytes().hex(), json.dumps(variables), NOW.isoformat()],
            env={**os.environ, "TZ": zone, "PYTHONHASHSEED": seed, "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(ran.stdout)
    assert len(outputs) == 1
    here = compile_document(document).render(variables, NOW)
    stored = document.to_bytes().hex()
    assert json.loads(outputs.pop()) == [here.subject, here.html, here.text, dict(here.headers), stored]
    assert " at 0x" not in str(here)


# --- What a template may cost: counted, not timed ---------------------------------------------------------------------

LOOPS = "{% for i in (1..10000) %}{% for j in (1..10000) %}"
ENDS = "{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        LOOPS + ENDS,
        LOOPS + "x" + ENDS,
        LOOPS + "{% if 1 == 2 %}{% endif %}" + ENDS,
        LOOPS + "{% increment a %}" + ENDS,
        LOOPS + "{% break %}" + ENDS,
        LOOPS + "{% capture c %}{{ s }}{% endcapture %}" + ENDS,
        LOOPS + "{% assign c = s | upcase %}" + ENDS,
        LOOPS + "{% if s contains 'b' %}{% endif %}" + ENDS,
        LOOPS + "{% if l contains 'b' %}{% endif %}" + ENDS,
        LOOPS + "{% if l == m %}{% endif %}" + ENDS,
        LOOPS + "{% for k in l reversed %}{% endfor %}" + ENDS,
        LOOPS + "{% if (1..10000) contains 'x' %}{% endif %}" + ENDS,
        "{% for i in (1..10000) %}{% endfor %}" * 40,
        "{% tablerow i in (1..10000) %}{% tablerow j in (1..10000) %}{% endtablerow %}{% endtablerow %}",
        "{% case 1 %}{% when 1,1,1,1,1,1,1,1,1,1 %}" * 20 + "x" + "{% endcase %}" * 20,
        "{% assign a = s %}{% for i in (1..99) %}{% assign a = a | append: a %}{% endfor %}",
        "{% assign a = l %}{% for i in (1..99) %}{% assign a = a | concat: a %}{% endfor %}",
        "{% assign a = n %}{% for i in (1..99) %}{% assign a = a | times: a %}{% endfor %}",
        "{% for i in (1..999999999999) %}{% endfor %}",
        "{% for i in (1..999999999999) reversed %}{% endfor %}",
        "{% if (1..999999999999) contains 'x' %}{% endif %}",
        "{{ (1..999999999999) | join }}",
        "{{ (1..99999999999999999999999999) | size }}",
        "{{ s | replace: '', s }}",
        "{{ s | replace: 'a', s }}",
        "{{ l | join: s }}",
        "{% for i in (1..99) %}{{ l | uniq | size }}{% endfor %}",
    ],
)
def test_no_template_does_more_than_its_budget(source: str) -> None:
    error = failure(source + ".", s="a" * 10_000, l=[str(i) for i in range(2_000)], m=[1], n=10**18)
    assert error.code == "template_too_costly"


def test_the_largest_range_is_usable() -> None:
    assert text("{% for i in (1.." + str(MAX_RANGE) + ") limit: 2 %}{{ i }}{% endfor %}") == "12"


def spent(source: str, **variables: Any) -> int:
    budget = Budget(BUDGET)
    compile_source(source, "text", autoescape=False).render(variables, NOW, budget, "text")
    return BUDGET - budget.left


def test_every_turn_of_a_loop_pays_for_its_block() -> None:
    def cost(turns: int, body: str) -> int:
        return spent("{% for i in (1.." + str(turns) + ") %}" + body + "{% endfor %}")

    for body in ("", "{% if 1 == 1 %}{% endif %}", "{% increment a %}", "{% assign a = 1 %}"):
        assert cost(101, body) - cost(1, body) >= 100 * STEP
    double = cost(101, "{% increment a %}" * 2) - cost(101, "{% increment a %}")
    assert double >= 100 * STEP


@pytest.mark.parametrize(
    ("source", "least"),
    [
        ("{{ s }}", 1_000),
        ("{{ s | upcase }}", 3_000),
        ("{% if s == t %}{% endif %}", 2_000),
        ("{% if t contains s %}{% endif %}", 2_000),
        ("{% assign a = s %}{{ a }}", 3_000),
        ("{{ s | url_encode }}", 6_000),
        ("{% for x in l %}{% endfor %}", 100 * (16 + STEP)),
        ("{{ l | uniq | size }}", 4 * 100 * (16 + 1)),
        ("{{ l | sort | size }}", 100 * 7),
    ],
)
def test_what_is_touched_is_paid_for(source: str, least: int) -> None:
    assert spent(source, s="a" * 1_000, t="b" * 1_000, l=list(range(100))) >= least


def test_the_budget_is_shared_by_the_parts() -> None:
    source = "{% for i in (1..9000) %}{% increment a %}{% endfor %}"
    template(source, html="x").render({}, NOW)
    with pytest.raises(RenderError) as caught:
        template(source, html=source, headers={"X-A": "{% if true %}{{ 'a' | upcase }}{% endif %}"}).render({}, NOW)
    assert (caught.value.code, caught.value.part) == ("template_too_costly", "text")


def test_output_and_values_have_an_end() -> None:
    repeat: Callable[[int], str] = lambda times: "{% for i in (1.." + str(times) + ") %}{{ s }}{% endfor %}"  # noqa: E731
    assert failure(repeat(150), s="a" * 10_000).code == "rendered_too_large"
    assert len(text(repeat(100), s="a" * 10_000) or "") == MAX_OUTPUT
    captured = "{% capture c %}" + repeat(MAX_VALUE // 10_000 + 1) + "{% endcapture %}"
    assert failure(captured, s="a" * 10_000).code == "template_too_costly"


def test_a_generous_ordinary_message_is_far_below_the_budget() -> None:
    rows = [{"name": f"Item {i}", "price": i * 1.1, "url": f"https://x.org/{i}"} for i in range(150)]
    source = (
        "<table>{% for r in rows %}<tr class=\"{% cycle 'a', 'b' %}\"><td><a href=\"{{ r.url }}\">{{ r.name | upcase }}</a>"
        "</td><td>{{ r.price | round: 2 }}</td>{% if r.price > 100 %}<td>!</td>{% endif %}</tr>{% endfor %}</table><p>"
    )
    source += "x" * 100_000
    assert spent(source, rows=rows) < BUDGET // 3
