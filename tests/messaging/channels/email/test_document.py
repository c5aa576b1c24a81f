"""Documents and variables: validation, one table a field, and the storage form."""

from __future__ import annotations

import enum
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from messaging.channels.email import Document, compile_document
from messaging.channels.email.document import MAX_BODY_BYTES
from messaging.channels.templates.variables import validate_variables
from messaging.domain.errors import InvalidInput, MessagingError, TooLarge

GOOD: dict[str, Any] = {"from_": "Ada <ada@x.org>", "subject": "Hello", "text": "Hello"}


def parse(**changes: Any) -> Document:
    return Document.parse(**{**GOOD, **changes})


def test_a_document_holds_wire_forms() -> None:
    document = parse(from_="Ada <ada@BÜCHER.example>", reply_to=["Bob <bob@X.org>", "c@y.org"], headers={"X-A": "1"})
    assert document == Document(
        sender="Ada <ada@xn--bcher-kva.example>",
        sender_domain="xn--bcher-kva.example",
        reply_to=("Bob <bob@x.org>", "c@y.org"),
        subject="Hello",
        html=None,
        text="Hello",
        headers={"X-A": "1"},
        liquid=False,
    )


@pytest.mark.parametrize("absent", [None, "", " \n"])
def test_an_empty_body_part_counts_as_absent(absent: str | None) -> None:
    assert parse(html=absent).html is None
    assert parse(html="<p>", text=absent).text is None


def test_reply_to_may_be_one_string() -> None:
    assert parse(reply_to="bob@x.org").reply_to == ("bob@x.org",)


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"from_": None}, "invalid_type", "from"),
        ({"from_": "ada"}, "invalid_address", "from"),
        ({"from_": "Ada\r\nBcc: <ada@x.org>"}, "header_injection", "from"),
        ({"from_": "{{ name }} <ada@x.org>"}, "liquid_not_allowed", "from"),
        ({"from_": "{% if a %}a{% endif %}@x.org"}, "liquid_not_allowed", "from"),
        ({"reply_to": "ada"}, "invalid_address", "reply_to"),
        ({"reply_to": ["ada@x.org", 5]}, "invalid_type", "reply_to"),
        ({"reply_to": "{{ a }}@x.org"}, "liquid_not_allowed", "reply_to"),
        ({"reply_to": ["a@x.org"] * 11}, "too_many_addresses", "reply_to"),
        ({"subject": None}, "empty_subject", "subject"),
        ({"subject": ""}, "empty_subject", "subject"),
        ({"subject": "  "}, "empty_subject", "subject"),
        ({"subject": 5}, "invalid_type", "subject"),
        ({"subject": "a\nb"}, "header_injection", "subject"),
        ({"subject": "a\rb"}, "header_injection", "subject"),
        ({"subject": "a\0b"}, "header_injection", "subject"),
        ({"subject": "a\u2029b"}, "header_injection", "subject"),
        ({"subject": "a\udc00b"}, "header_injection", "subject"),
        ({"subject": "a" * 999}, "subject_too_long", "subject"),
        ({"text": None}, "empty_body", "html"),
        ({"text": "", "html": " "}, "empty_body", "html"),
        ({"text": 5}, "invalid_type", "text"),
        ({"html": {}}, "invalid_type", "html"),
        ({"html": "a\0"}, "invalid_text", "html"),
        ({"text": "a\ud800"}, "invalid_text", "text"),
        ({"headers": []}, "invalid_type", "headers"),
        ({"headers": {"X-A": 5}}, "invalid_header", "headers"),
        ({"headers": {"X-A": None}}, "invalid_header", "headers"),
        ({"headers": {5: "a"}}, "invalid_header", "headers"),
        ({"headers": {"": "a"}}, "invalid_header", "headers"),
        ({"headers": {"X A": "a"}}, "invalid_header", "headers"),
        ({"headers": {"X:A": "a"}}, "invalid_header", "headers"),
        ({"headers": {"X-Ä": "a"}}, "invalid_header", "headers"),
        ({"headers": {"X" * 77: "a"}}, "invalid_header", "headers"),
        ({"headers": {"X-A": "a" * 999}}, "invalid_header", "headers"),
        ({"headers": {"X-A": "a", "x-a": "b"}}, "invalid_header", "headers"),
        ({"headers": {f"X-{i}": "a" for i in range(21)}}, "too_many_headers", "headers"),
        ({"headers": {"X-A": "a\r\nBcc: b@x.org"}}, "header_injection", "headers"),
        ({"headers": {"X-A\n": "a"}}, "header_injection", "headers"),
        ({"subject": "{{ a"}, "template_syntax", "subject"),
        ({"html": "{% if a %}"}, "template_syntax", "html"),
        ({"headers": {"X-A": "{{ a | nope }}"}}, "unknown_filter", "headers"),
        ({"text": "{% include 'a' %}"}, "unknown_tag", "text"),
    ],
)
def test_refused(changes: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(**changes)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert caught.value.message


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            "From",
            "to",
            "CC",
            "bcc",
            "Subject",
            "REPLY-TO",
            "Sender",
            "Return-Path",
            "Date",
            "Message-ID",
            "MIME-Version",
        }
        | {"Content-Type", "content-anything", "DKIM-Signature", "Resent-To", "ARC-Seal", "Received"}
    ),
)
def test_reserved_headers(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(headers={name: "a"})
    assert (caught.value.code, caught.value.field) == ("reserved_header", "headers")


def test_ordinary_headers_are_taken() -> None:
    headers = {"List-Unsubscribe": "<https://x.org/u>", "In-Reply-To": "<1@x.org>", "X-Entity-Ref-ID": "{{ id }}"}
    assert parse(headers=headers).headers == headers


@pytest.mark.parametrize(
    "changes",
    [
        {"text": "a" * (MAX_BODY_BYTES + 1)},
        {"text": "é" * (MAX_BODY_BYTES // 2 + 1)},
        {"text": "a" * 600_000, "html": "a" * 600_000},
    ],
)
def test_bodies_have_a_limit_in_bytes(changes: dict[str, Any]) -> None:
    with pytest.raises(TooLarge) as caught:
        parse(**changes)
    assert caught.value.code == "body_too_large"


def test_the_limit_itself_is_accepted() -> None:
    assert parse(text="a" * (MAX_BODY_BYTES - 2), html="é").html == "é"


@pytest.mark.parametrize(
    ("changes", "liquid"),
    [
        ({}, False),
        ({"text": "a { b } % c }} %}"}, False),
        ({"text": "{{ a }}"}, True),
        ({"html": "{% if a %}{% endif %}x"}, True),
        ({"subject": "{{ a }}"}, True),
        ({"headers": {"X-A": "{{ a }}"}}, True),
        ({"text": "{{ a", "subject": "{% nope %}", "literal": True}, False),
    ],
)
def test_what_is_liquid(changes: dict[str, Any], liquid: bool) -> None:
    assert parse(**changes).liquid is liquid


def test_no_error_quotes_what_it_refuses() -> None:
    secret = "xyzzy"
    for changes in (
        {"text": "{% if '" + secret + "' ~ %}"},
        {"text": "{{ '" + secret + "' " + '"' + secret + '" }}'},
        {"text": "{{ a." + secret + "! }}"},
        {"subject": secret + "\n"},
        {"headers": {"X-A": secret + "\n"}},
        {"from_": secret},
    ):
        with pytest.raises(InvalidInput) as caught:
            parse(**changes)
        assert secret not in str(caught.value)


def test_markup_objects_are_text() -> None:
    assert type(parse(html=Markup("<p>")).html) is str


documents = st.builds(
    lambda **fields: fields,
    from_=st.sampled_from(["ada@x.org", "Ünï <ada@bücher.example>", '"A, B" <a@x.org>']),
    subject=st.text(min_size=1, max_size=40),
    html=st.none() | st.text(max_size=60),
    text=st.none() | st.text(max_size=60),
    reply_to=st.none() | st.lists(st.sampled_from(["b@x.org", "C <c@x.org>"]), max_size=3),
    headers=st.none() | st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=3),
    literal=st.booleans(),
)


@settings(deadline=None)
@given(documents)
def test_documents_round_trip(fields: dict[str, Any]) -> None:
    try:
        document = Document.parse(**fields)
    except MessagingError:
        return
    stored = document.to_bytes()
    assert Document.from_bytes(stored) == document
    assert Document.from_bytes(stored).to_bytes() == stored
    compile_document(document)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


FIELDS = ("from_", "subject", "html", "text", "reply_to", "headers")


def refusal(**fields: Any) -> MessagingError | None:
    try:
        compile_document(Document.parse(**fields))
    except MessagingError as error:
        return error
    return None


@settings(deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(FIELDS, anything)))
def test_parse_raises_nothing_but_its_errors(fields: dict[str, Any]) -> None:
    for given_fields in (
        fields,
        {**fields, "from_": "ada@x.org", "subject": "a"},
        {**GOOD, "headers": fields["headers"]},
    ):
        error = refusal(**given_fields)
        assert error is None or (error.code and error.field)


@settings(deadline=None)
@given(st.text("{}%|'\"abc.[]() \n-:,1=" + "ifendforassigncapturecomment#raw", max_size=60))
def test_no_source_crashes_the_compiler(source: str) -> None:
    error = refusal(**{**GOOD, "text": "{{ a }}" + source})
    assert error is None or error.field == "text"


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw + b" ",
        lambda raw: b" " + raw,
        lambda raw: raw.replace(b'"v":1', b'"v":2'),
        lambda raw: raw.replace(b'"liquid":false', b'"liquid":0'),
        lambda raw: raw.replace(b'"text":"Hello"', b'"text":5'),
        lambda raw: raw.replace(b'"reply_to":[]', b'"reply_to":""'),
        lambda raw: raw.replace(b'"reply_to":[]', b'"reply_to":[5]'),
        lambda raw: raw.replace(b'"headers":{}', b'"headers":[]'),
        lambda raw: raw.replace(b'"subject"', b'"sabject"'),
        lambda raw: raw.replace(b'"v":1', b'"v":1,"w":1'),
        lambda raw: b"[]",
        lambda raw: b"null",
        lambda raw: b"\xff",
        lambda raw: b"[" * 100_000,
    ],
)
def test_stored_bytes_are_taken_exactly_or_not_at_all(damage: Any) -> None:
    raw = parse().to_bytes()
    damaged = damage(raw)
    assert damaged != raw
    with pytest.raises(ValueError, match="not a stored document") as caught:
        Document.from_bytes(damaged)
    assert caught.value.__cause__ is None


def test_equal_documents_have_equal_bytes() -> None:
    one = parse(headers={"X-A": "1", "X-B": "2"})
    other = parse(headers={"X-B": "2", "X-A": "1"})
    assert one.to_bytes() == other.to_bytes()
    assert parse(text="{{ a", literal=True).to_bytes() != parse(text="{{ a}}").to_bytes()


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ({}, {}),
        ({"a": None, "b": True, "c": 1, "d": 1.5, "e": "x"}, {"a": None, "b": True, "c": 1, "d": 1.5, "e": "x"}),
        ({"a": {"first name": ["x", {"y": [1]}]}}, {"a": {"first name": ["x", {"y": [1]}]}}),
        ({"Größe": 1, "_a-b1": 2}, {"Größe": 1, "_a-b1": 2}),
        ({"a": Colour.RED}, {"a": 1}),
        ({"a": 2**63 - 1, "b": -(2**63)}, {"a": 2**63 - 1, "b": -(2**63)}),
    ],
)
def test_variables_are_copied(raw: dict[str, Any], clean: dict[str, Any]) -> None:
    copy = validate_variables(raw)
    assert copy == clean
    assert copy is not raw
    assert json.loads(json.dumps(copy)) == copy


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (None, "invalid_type"),
        ([], "invalid_type"),
        ("{}", "invalid_type"),
        ({1: 1}, "invalid_variables"),
        ({"": 1}, "invalid_variables"),
        ({"first name": 1}, "invalid_variables"),
        ({"1a": 1}, "invalid_variables"),
        ({"a.b": 1}, "invalid_variables"),
        ({"a\n": 1}, "invalid_variables"),
        ({"a" * 65: 1}, "invalid_variables"),
        ({"a": {1: 1}}, "invalid_variables"),
        ({"a": {"": 1}}, "invalid_variables"),
        ({"a": float("nan")}, "invalid_variables"),
        ({"a": [float("inf")]}, "invalid_variables"),
        ({"a": 2**63}, "invalid_variables"),
        ({"a": (1, 2)}, "invalid_variables"),
        ({"a": {1, 2}}, "invalid_variables"),
        ({"a": b"x"}, "invalid_variables"),
        ({"a": object()}, "invalid_variables"),
        ({"a": "x\0"}, "invalid_variables"),
        ({"a": "\ud800"}, "invalid_variables"),
        ({"a": {"\ud800": 1}}, "invalid_variables"),
        ({"a": nested(8)}, "invalid_variables"),
        ({"a": nested(100_000 // 200)}, "invalid_variables"),
        ({"a": "x" * 16384}, "variables_too_large"),
        ({"a": "é" * 8192}, "variables_too_large"),
        ({"a": "\x01" * 4000}, "variables_too_large"),
        ({"a": [0] * 1_000_000}, "variables_too_large"),
        ({f"a{i}": "x" * 10 for i in range(2000)}, "variables_too_large"),
    ],
)
def test_variables_refused(raw: object, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        validate_variables(raw, "recipients")
    assert (caught.value.code, caught.value.field) == (code, "recipients")


def test_depth_eight_is_accepted() -> None:
    assert validate_variables({"a": nested(7)})


def test_safe_strings_lose_their_claim() -> None:
    copy = validate_variables({"a": Markup("<b>"), "b": [Markup("<i>")]})
    assert type(copy["a"]) is str
    assert type(copy["b"][0]) is str  # type: ignore[index]


@settings(deadline=None)
@given(anything | st.dictionaries(st.text("ab1 -", max_size=3), anything))
def test_variables_raise_nothing_else_and_the_copy_is_json(raw: object) -> None:
    try:
        copy = validate_variables(raw)
    except MessagingError:
        return
    assert json.loads(json.dumps(copy, allow_nan=False)) == copy
    assert validate_variables(copy) == copy
