"""Nothing raw gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.providers.redact import MAX_DETAIL, redact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Invalid `to` field: eve@x.org.", "Invalid `to` field: [address]"),
        ("Eve <eve@x.org>, 'bob@y.org'", "Eve <[address]>, '[address]'"),
        ('"eve the first"@x.org is bad', "[address] is bad"),
        ("mailto:eve%40x.org", "[address]"),
        ("eve＠x.org eve&#64;x.org eve&#x40;x.org", "[address] [address] [address]"),
        ("zoë@straße.de", "[address]"),
        ("call +49 (170) 123-4567 now", "call [number] now"),
        ("call 01701234567", "call [number]"),
        ("key re_AbC123_x and whsec_MfKQ9r8=", "key [key] and [key]"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer [key]"),
        ("The acme.example domain is not verified.", "The acme.example domain is not verified."),
        ("You can only make 10 requests per second.", "You can only make 10 requests per second."),
        ("email ae2014de-c168-4c61-8267-70d2662a1ce1", "email ae2014de-c168-4c61-8267-70d2662a1ce1"),
        ("two\r\nlines\x00\udc80", "two lines"),
        (None, ""),
        ({"a": 1}, ""),
        (7, ""),
    ],
)
def test_blotted(text: object, expected: str) -> None:
    assert redact(text) == expected


def test_secrets_of_any_form() -> None:
    assert redact("key hunter2 is invalid", secrets=["hunter2", ""]) == "key [key] is invalid"


def test_bounded_without_half_an_address() -> None:
    text = "x" * 1990 + " eve@x.org"
    assert len(redact(text)) == MAX_DETAIL
    assert "eve" not in redact("(" * 1000 + " " * 992 + "eve@x.org")


@given(before=st.text(max_size=30), after=st.text(max_size=30))
def test_an_address_never_gets_through(before: str, after: str) -> None:
    assert "eve.smith@x.org" not in redact(f"{before}eve.smith@x.org{after}")


@pytest.mark.parametrize("text", ["a" * 10**6, '"' * 10**6, "1 " * 10**6, "a@" * 10**6, "re_" * 10**6, "+1" * 10**6])
@pytest.mark.timeout(5)
def test_any_input_takes_little_time(text: str) -> None:
    assert len(redact(text)) <= MAX_DETAIL
