"""One e-mail address, as it is written, sent and recognised. Pure: no look-up, no provider.

What is accepted: `local@domain` and `Display Name <local@domain>`, exactly one of them. The local part is an ASCII
dot-atom (quoted local parts and address literals exist in the standard and in no mailbox one would send to, and
non-ASCII local parts need SMTPUTF8 along the whole way). The domain may be internationalised; it is kept in ASCII.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import idna

from messaging.domain.errors import InvalidInput

MAX_ADDRESS = 254  # characters of `local@domain`: what fits into an SMTP path (RFC 5321 4.5.3.1.3, less the brackets)
MAX_LOCAL = 64  # RFC 5321 4.5.3.1.1
MAX_NAME = 200  # of a display name: a header line stays far below the 998 characters that mail servers guarantee

_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL = rf"{_ATEXT}+(?:\.{_ATEXT}+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_TLD = r"[A-Za-z](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])"
#: Nearly all addresses there are. `xn--` labels are left to `_ascii_domain`, which sees whether they mean anything.
_PLAIN = re.compile(rf"({_LOCAL})@((?:{_LABEL}\.)+{_TLD})")
_LOCAL_ONLY = re.compile(_LOCAL)
_DOMAIN_ONLY = re.compile(rf"(?:{_LABEL}\.)+{_TLD}")

#: What may end or hide a header line somewhere on the way: controls, line separators, halves of surrogate pairs.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: Characters that end an unquoted phrase (RFC 5322 3.2.3), but for the dot, which everybody writes.
_SPECIALS = re.compile(r'[()<>\[\]:;@\\,"]')
_BARE_NAME = re.compile(r"[\w !#$%&'*+/=?^`{|}~-]+")
_QUOTED_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Address:
    """`wire` is what the provider gets (`Ada <ada@x.org>` or the bare address), `spec` the bare address."""

    wire: str
    spec: str

    @property
    def domain(self) -> str:
        """In ASCII, lower case."""
        return self.spec[self.spec.rindex("@") + 1 :]

    @property
    def canonical(self) -> str:
        return recipient_key(self.spec)


def recipient_key(spec: str) -> str:
    """The text whose fingerprint stands for the mailbox `spec` (an `Address.spec`).

    The local part is lower-cased: by the standard its case matters, in practice it is one person, and the same person
    twice in one blast is one send. Nothing else is folded: dots and `+tags` differ from provider to provider.
    """
    return spec.lower()


def parse_address(raw: object, field: str) -> Address:
    """The one address in `raw`. Raises InvalidInput for `field`; the text of the error never holds the address."""
    if type(raw) is not str:
        if not isinstance(raw, str):
            raise InvalidInput("invalid_type", "must be a string holding one e-mail address", field=field)
        raw = str.__str__(raw)
    plain = _PLAIN.fullmatch(raw)
    if plain is not None and len(raw) <= MAX_ADDRESS and plain.end(1) <= MAX_LOCAL:
        domain = plain[2].lower()
        if "xn--" not in domain:
            spec = f"{plain[1]}@{domain}"
            return Address(spec, spec)
    return _parse_with_care(raw, field)


def parse_recipient(raw: object) -> Address:
    """The one address in `raw`, to whom a message goes. Raises InvalidInput for the field `to`.

    `{{ email }}@example.org` is an address by the letter of the standard, and means that nobody filled it in.
    """
    if isinstance(raw, str) and "{" in raw and ("{{" in raw or "{%" in raw):
        raise InvalidInput("liquid_not_allowed", "must be an address as it stands, without {{ or {%", field="to")
    return parse_address(raw, "to")


def _parse_with_care(raw: str, field: str) -> Address:
    if len(raw) > MAX_NAME * 2 + MAX_ADDRESS + 16:  # nothing longer can be valid: no time is spent on it
        raise _too_long(field)
    if UNSAFE.search(raw):
        raise InvalidInput("header_injection", "must not contain line breaks or control characters", field=field)
    text = raw.strip(" ")
    if not text.endswith(">"):
        spec = _spec(text, field)
        return Address(spec, spec)
    phrase, bracket, inner = text[:-1].rpartition("<")
    if not bracket:
        raise _invalid(field)
    spec = _spec(inner, field)
    name = _display_name(phrase.strip(" "), field)
    return Address(f"{_quoted(name)} <{spec}>" if name else spec, spec)


def _spec(text: str, field: str) -> str:
    local, at, domain = text.rpartition("@")
    if not at:
        raise _invalid(field)
    if len(text) > MAX_ADDRESS or len(local) > MAX_LOCAL:
        raise _too_long(field)
    ascii_domain = _ascii_domain(domain)
    if ascii_domain is None or not _LOCAL_ONLY.fullmatch(local):
        raise _invalid(field)
    spec = f"{local}@{ascii_domain}"
    if len(spec) > MAX_ADDRESS:
        raise _too_long(field)
    return spec


@functools.lru_cache(maxsize=1024)  # lists of recipients repeat their domains
def _ascii_domain(domain: str) -> str | None:
    """The domain in ASCII and lower case, or None if there is no such host name."""
    if domain.isascii() and "xn--" not in domain.lower():
        ascii_form = domain.lower()
    else:
        try:
            ascii_form = idna.encode(domain, uts46=True, std3_rules=True).decode("ascii")
        except UnicodeError:  # idna.IDNAError is one
            return None
    return ascii_form if _DOMAIN_ONLY.fullmatch(ascii_form) and len(ascii_form) <= 253 else None


def _display_name(phrase: str, field: str) -> str:
    quoted = _QUOTED_NAME.fullmatch(phrase)
    if quoted:
        phrase = re.sub(r"\\(.)", r"\1", quoted[1])
    elif _SPECIALS.search(phrase):
        raise InvalidInput(
            "invalid_address",
            'must be one address; a display name with any of ( ) < > [ ] : ; @ \\ , " goes into double quotes',
            field=field,
        )
    # Mail clients decode `=?…?=` and some show what follows a bracket as the address: neither has a place in a name.
    if "=?" in phrase or "<" in phrase or ">" in phrase:
        raise InvalidInput("invalid_address", "the display name must not contain =? or < or >", field=field)
    if len(phrase) > MAX_NAME:
        raise InvalidInput("address_too_long", f"the display name has at most {MAX_NAME} characters", field=field)
    return " ".join(phrase.split())


def _quoted(name: str) -> str:
    if _BARE_NAME.fullmatch(name):
        return name
    escaped = name.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def _invalid(field: str) -> InvalidInput:
    return InvalidInput(
        "invalid_address", "must be one e-mail address: local@domain or Display Name <local@domain>", field=field
    )


def _too_long(field: str) -> InvalidInput:
    return InvalidInput(
        "address_too_long",
        f"an address has at most {MAX_ADDRESS} characters, its part before the @ at most {MAX_LOCAL}",
        field=field,
    )
