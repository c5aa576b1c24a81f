"""A document: everything about a message but its recipient. Validated once, then immutable and stored as bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from core.security.hashing import canonical_json
from messaging.channels.email.address import UNSAFE, Address, parse_address
from messaging.channels.templates.liquid import compile_source, has_markup
from messaging.domain.errors import InvalidInput, TooLarge

MAX_BODY_BYTES = 1_000_000  # html and text together, UTF-8
MAX_SUBJECT = 998  # characters: the longest line a mail server must take (RFC 5322 2.1.1)
MAX_HEADERS = 20
MAX_HEADER_NAME = 76
MAX_HEADER_VALUE = 998
MAX_REPLY_TO = 10

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
#: Set by other fields, by the platform or by mail servers on the way. One given by hand would contradict, redirect or
#: forge: Bcc adds a recipient that no ledger knows, Message-ID and Date must be the provider's for idempotent replays.
_RESERVED = frozenset(
    [
        "from",
        "to",
        "cc",
        "bcc",
        "subject",
        "reply-to",
        "sender",
        "return-path",
        "date",
        "message-id",
        "mime-version",
        "received",
        "delivered-to",
        "dkim-signature",
        "domainkey-signature",
        "authentication-results",
        "received-spf",
    ]
)
_RESERVED_PREFIXES = ("content-", "resent-", "arc-")

_BAD_TEXT = re.compile("[\x00\ud800-\udfff]")
_FORMAT = 1  # of `to_bytes`


@dataclass(frozen=True, slots=True)
class Document:
    """`sender` and `reply_to` in wire form. `liquid` False: every part is sent as it stands, braces included."""

    sender: str
    sender_domain: str
    reply_to: tuple[str, ...]
    subject: str
    html: str | None
    text: str | None
    headers: Mapping[str, str]
    liquid: bool

    @classmethod
    def parse(
        cls,
        *,
        from_: object,
        subject: object,
        html: object = None,
        text: object = None,
        reply_to: object = None,
        headers: object = None,
        literal: bool = False,
    ) -> Self:
        """Validates input of unknown types. Raises InvalidInput or TooLarge, with the field at fault.

        Subject, html, text and header values may be Liquid (not if `literal`); it is compiled here, so that what is
        stored can be rendered. An empty html or text counts as absent.
        """
        sender = _address(from_, "from", literal)
        answers = tuple(_address(item, "reply_to", literal).wire for item in _items(reply_to))
        subject_ = _subject(subject)
        html_, text_ = _body(html, "html"), _body(text, "text")
        if html_ is None and text_ is None:
            raise InvalidInput("empty_body", "give html, text or both", field="html")
        if sum(len(part.encode()) for part in (html_, text_) if part) > MAX_BODY_BYTES:
            raise TooLarge(
                "body_too_large", f"html and text have at most {MAX_BODY_BYTES} bytes together", field="html"
            )
        headers_ = _headers(headers)
        liquid = False
        if not literal:
            for field, source in (("subject", subject_), ("html", html_), ("text", text_)):
                liquid |= _check_liquid(source, field)
            for source in headers_.values():
                liquid |= _check_liquid(source, "headers")
        return cls(sender.wire, sender.domain, answers, subject_, html_, text_, headers_, liquid)

    def to_bytes(self) -> bytes:
        """Canonical: equal documents have equal bytes."""
        return canonical_json(
            {
                "v": _FORMAT,
                "from": self.sender,
                "from_domain": self.sender_domain,
                "reply_to": list(self.reply_to),
                "subject": self.subject,
                "html": self.html,
                "text": self.text,
                "headers": dict(self.headers),
                "liquid": self.liquid,
            }
        )

    def given(self) -> dict[str, Any]:
        """What was said of it, without what was left out: a part that documents get tomorrow changes nothing in it."""
        stored = json.loads(self.to_bytes())
        return {name: part for name, part in stored.items() if name != "v" and part not in (None, [], {}, False)}

    @classmethod
    def from_bytes(cls, stored: bytes) -> Self:
        """The document whose `to_bytes` are `stored`. Raises ValueError for anything else, to the byte."""
        try:
            raw: Any = json.loads(stored)
            document = cls(
                sender=raw["from"],
                sender_domain=raw["from_domain"],
                reply_to=tuple(raw["reply_to"]),
                subject=raw["subject"],
                html=raw["html"],
                text=raw["text"],
                headers=raw["headers"],
                liquid=raw["liquid"],
            )
            same = raw["v"] == _FORMAT and document._well_typed() and document.to_bytes() == stored
        except (TypeError, KeyError, AttributeError, ValueError, RecursionError):
            same = False
        if not same:
            # Without the cause: it would quote the bytes, which hold addresses.
            raise ValueError("not a stored document") from None
        return document

    def _well_typed(self) -> bool:
        strings = [self.sender, self.sender_domain, self.subject, *self.reply_to, *self.headers, *self.headers.values()]
        return (
            all(isinstance(item, str) for item in strings)
            and all(item is None or isinstance(item, str) for item in (self.html, self.text))
            and isinstance(self.headers, dict)
            and isinstance(self.liquid, bool)
        )


def _address(raw: object, field: str, literal: bool) -> Address:
    if isinstance(raw, str) and not literal and has_markup(raw):
        raise InvalidInput("liquid_not_allowed", "must be an address as it stands, without {{ or {%", field=field)
    return parse_address(raw, field)


def _items(raw: object) -> list[object]:
    if raw is None:
        return []
    if not isinstance(raw, list | tuple):
        return [raw]
    if len(raw) > MAX_REPLY_TO:
        raise InvalidInput("too_many_addresses", f"at most {MAX_REPLY_TO} addresses", field="reply_to")
    return list(raw)


def _string(raw: object, field: str) -> str:
    if not isinstance(raw, str):
        raise InvalidInput("invalid_type", "must be a string", field=field)
    # A subclass may claim to be safe HTML (`__html__`): kept as the plain text it is.
    return raw if type(raw) is str else str.__getitem__(raw, slice(None))


def _subject(raw: object) -> str:
    if raw is None:
        raise InvalidInput("empty_subject", "give a subject", field="subject")
    subject = _string(raw, "subject")
    if not subject.strip():
        raise InvalidInput("empty_subject", "give a subject", field="subject")
    if len(subject) > MAX_SUBJECT:
        raise InvalidInput("subject_too_long", f"at most {MAX_SUBJECT} characters", field="subject")
    if UNSAFE.search(subject):
        raise InvalidInput("header_injection", "must not contain line breaks or control characters", field="subject")
    return subject


def _body(raw: object, field: str) -> str | None:
    if raw is None:
        return None
    body = _string(raw, field)
    if len(body) > MAX_BODY_BYTES:  # bytes ≥ characters: no need to encode it to know
        raise TooLarge("body_too_large", f"html and text have at most {MAX_BODY_BYTES} bytes together", field=field)
    if _BAD_TEXT.search(body):
        raise InvalidInput("invalid_text", "must be valid Unicode without NUL", field=field)
    return body if body.strip() else None


def _headers(raw: object) -> dict[str, str]:
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise InvalidInput("invalid_type", "must be an object: {name: value}", field="headers")
    if len(raw) > MAX_HEADERS:
        raise InvalidInput("too_many_headers", f"at most {MAX_HEADERS} headers", field="headers")
    headers: dict[str, str] = {}
    seen: set[str] = set()
    for name, value in raw.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInput("invalid_header", "names and values must be strings", field="headers")
        name, value = _string(name, "headers"), _string(value, "headers")
        if UNSAFE.search(name) or UNSAFE.search(value):
            raise InvalidInput(
                "header_injection", "must not contain line breaks or control characters", field="headers"
            )
        if len(name) > MAX_HEADER_NAME or not _HEADER_NAME.fullmatch(name):
            raise InvalidInput(
                "invalid_header",
                f"a name has 1 to {MAX_HEADER_NAME} ASCII letters, digits and hyphens",
                field="headers",
            )
        lower = name.lower()
        if lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES):
            raise InvalidInput("reserved_header", f"{name} cannot be set here: leave it out", field="headers")
        if lower in seen:
            raise InvalidInput("invalid_header", f"{name} is given twice", field="headers")
        if len(value) > MAX_HEADER_VALUE:
            raise InvalidInput(
                "invalid_header", f"the value of {name} has more than {MAX_HEADER_VALUE} characters", field="headers"
            )
        seen.add(lower)
        headers[name] = value
    return headers


def _check_liquid(source: str | None, field: str) -> bool:
    if source is None or not has_markup(source):
        return False
    compile_source(source, field, autoescape=field == "html")
    return True
