"""Addresses: what is accepted, in which form, and which error else."""

from __future__ import annotations

import email.headerregistry
import email.policy
from email.parser import Parser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messaging.channels.email.address import UNSAFE, Address, parse_address, recipient_key
from messaging.domain.errors import InvalidInput, MessagingError

LONG_DOMAIN = ".".join(["a" * 60] * 4) + ".org"


@pytest.mark.parametrize(
    ("raw", "wire", "spec"),
    [
        ("ada@x.org", "ada@x.org", "ada@x.org"),
        ("Ada@X.ORG", "Ada@x.org", "Ada@x.org"),
        (" ada@x.org ", "ada@x.org", "ada@x.org"),
        ("a.b+tag@mail.x-y.org", "a.b+tag@mail.x-y.org", "a.b+tag@mail.x-y.org"),
        ("<ada@x.org>", "ada@x.org", "ada@x.org"),
        ("Ada <ada@x.org>", "Ada <ada@x.org>", "ada@x.org"),
        ("Ada<ada@x.org>", "Ada <ada@x.org>", "ada@x.org"),
        ("Ada   Lovelace <ada@x.org>", "Ada Lovelace <ada@x.org>", "ada@x.org"),
        ("Dr. Ada <ada@x.org>", '"Dr. Ada" <ada@x.org>', "ada@x.org"),
        ('"Lovelace, Ada" <ada@x.org>', '"Lovelace, Ada" <ada@x.org>', "ada@x.org"),
        ('"A \\"q\\" \\\\ B" <ada@x.org>', '"A \\"q\\" \\\\ B" <ada@x.org>', "ada@x.org"),
        ('"Ada" <ada@x.org>', "Ada <ada@x.org>", "ada@x.org"),
        ("Ünï Çödé <ada@x.org>", "Ünï Çödé <ada@x.org>", "ada@x.org"),
        ("ada@bücher.example", "ada@xn--bcher-kva.example", "ada@xn--bcher-kva.example"),
        ("ada@BÜCHER.example", "ada@xn--bcher-kva.example", "ada@xn--bcher-kva.example"),
        ("ada@XN--Bcher-KVA.example", "ada@xn--bcher-kva.example", "ada@xn--bcher-kva.example"),
    ],
)
def test_accepted(raw: str, wire: str, spec: str) -> None:
    address = parse_address(raw, "to")
    assert (address.wire, address.spec) == (wire, spec)
    assert address.domain == spec.partition("@")[2]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (None, "invalid_type"),
        (5, "invalid_type"),
        (b"ada@x.org", "invalid_type"),
        (["ada@x.org"], "invalid_type"),
        ("", "invalid_address"),
        ("@", "invalid_address"),
        ("ada", "invalid_address"),
        ("ada@", "invalid_address"),
        ("@x.org", "invalid_address"),
        ("ada@x", "invalid_address"),
        ("ada@x.1", "invalid_address"),
        ("ada@-x.org", "invalid_address"),
        ("ada@x-.org", "invalid_address"),
        ("ada@x_y.org", "invalid_address"),
        ("ada@x..org", "invalid_address"),
        ("ada@[127.0.0.1]", "invalid_address"),
        ("ada@xn--zz--zz.org", "invalid_address"),
        (".ada@x.org", "invalid_address"),
        ("a..da@x.org", "invalid_address"),
        ('"a da"@x.org', "invalid_address"),
        ("ädä@x.org", "invalid_address"),
        ("ada@x.org, bob@x.org", "invalid_address"),
        ("ada@x.org,bob@x.org", "invalid_address"),
        ("ada@x.org;bob@x.org", "invalid_address"),
        ("<ada@x.org>, <bob@x.org>", "invalid_address"),
        ("Lovelace, Ada <ada@x.org>", "invalid_address"),
        ("ada@x.org <bob@x.org>", "invalid_address"),
        ("Ada <b> <ada@x.org>", "invalid_address"),
        ('"Ada <bank@x.org>" <ada@x.org>', "invalid_address"),
        ("=?utf-8?q?Ada?= <ada@x.org>", "invalid_address"),
        ("ada@x.org>", "invalid_address"),
        ("ada@x.org\n", "header_injection"),
        ("ada@x.org\r\nBcc: bob@x.org", "header_injection"),
        ("Ada\r\n <ada@x.org>", "header_injection"),
        ("Ada\x00 <ada@x.org>", "header_injection"),
        ("Ada\x85 <ada@x.org>", "header_injection"),
        ("Ada\u2028 <ada@x.org>", "header_injection"),
        ("Ada\ud800 <ada@x.org>", "header_injection"),
        ("Ada\t<ada@x.org>", "header_injection"),
        ("a" * 65 + "@x.org", "address_too_long"),
        ("a" * 64 + "@" + LONG_DOMAIN, "address_too_long"),
        ("n" * 201 + " <ada@x.org>", "address_too_long"),
        ("x" * 1_000_000, "address_too_long"),
    ],
)
def test_refused(raw: object, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_address(raw, "reply_to")
    assert (caught.value.code, caught.value.field) == (code, "reply_to")
    if isinstance(raw, str) and len(raw) > 3:
        assert raw not in caught.value.message


def test_too_long_says_how_long_it_may_be() -> None:
    with pytest.raises(InvalidInput, match="at most 254 characters"):
        parse_address("a" * 64 + "@" + LONG_DOMAIN, "to")


def test_the_limit_itself_is_accepted() -> None:
    domain = ".".join(["a" * 60] * 3) + ".org"  # 187
    spec = "l" * (254 - 1 - len(domain)) + "@" + domain
    assert len(spec.partition("@")[0]) > 64  # the local part is the tighter limit here
    with pytest.raises(InvalidInput, match="at most 64"):
        parse_address(spec, "to")
    wide = "l" * 64 + "@" + ".".join(["a" * 61] * 2 + ["b" * 61, "org"])
    assert len(wide) == 64 + 1 + 61 * 3 + 3 + 3 == 254
    assert parse_address(wide, "to").spec == wide
    with pytest.raises(InvalidInput) as caught:
        parse_address("l" * 64 + "@" + ".".join(["a" * 61] * 2 + ["b" * 62, "org"]), "to")
    assert caught.value.code == "address_too_long"


@pytest.mark.parametrize(
    "spellings",
    [
        ("Ada@x.org", "ada@X.org", "ADA@X.ORG", "Ada <aDa@x.org>"),
        ("ada@bücher.example", "ada@xn--bcher-kva.example", "ADA@BÜCHER.example"),
    ],
)
def test_spellings_of_one_mailbox_have_one_canonical_text(spellings: tuple[str, ...]) -> None:
    assert len({parse_address(raw, "to").canonical for raw in spellings}) == 1


def test_tags_and_dots_are_other_mailboxes() -> None:
    assert len({recipient_key(f"{local}@x.org") for local in ("ada", "a.da", "ada+1")}) == 3


def test_a_subclass_of_str_is_taken_as_text() -> None:
    class Loud(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "other@x.org"

    assert parse_address(Loud("ada@x.org"), "to") == Address("ada@x.org", "ada@x.org")


@settings(deadline=None)
@given(st.text(max_size=80) | st.from_regex(r"\A.{0,20}<?[a-z\"\\@.]{1,20}@[a-zü.-]{1,20}>?\Z"))
def test_never_raises_anything_else_and_what_is_accepted_is_stable(raw: str) -> None:
    try:
        address = parse_address(raw, "to")
    except MessagingError:
        return
    assert not UNSAFE.search(address.wire)
    assert address.spec.isascii()
    assert parse_address(address.wire, "to") == address
    assert parse_address(address.spec, "to").spec == address.spec


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=60))
def test_a_display_name_reads_back_as_one_mailbox_with_another_parser(name: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    try:
        address = parse_address(f'"{quoted}" <ada@x.org>', "to")
    except MessagingError:
        return
    message = Parser(policy=email.policy.default).parsestr(f"To: {address.wire}\n\n")
    header = message["To"]
    assert isinstance(header, email.headerregistry.UniqueAddressHeader)
    assert [one.addr_spec for one in header.addresses] == ["ada@x.org"]
