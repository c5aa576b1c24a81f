"""A compiled document, and what comes of it with one recipient's values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from messaging.channels.email.address import UNSAFE
from messaging.channels.email.document import MAX_BODY_BYTES, MAX_HEADER_VALUE, MAX_SUBJECT, Document
from messaging.channels.templates.filters import Budget
from messaging.channels.templates.liquid import compile_source, has_markup
from messaging.channels.templates.runtime import BUDGET, Part, RenderError
from messaging.domain.errors import InvalidInput, MessagingError

__all__ = ["RenderError", "Rendered", "Template", "compile_document"]


@dataclass(frozen=True, slots=True)
class Rendered:
    subject: str
    html: str | None
    text: str | None
    headers: Mapping[str, str]


#: Bytes of a document and its template, but for texts and compiled parts.
_SHELL = 2_000


class Template:
    """A document ready to render. Immutable; threads may share it. Make it with `compile_document`."""

    __slots__ = ("_names", "_subject_names", "_verbatim", "document", "headers", "html", "subject", "text")

    def __init__(self, document: Document) -> None:
        self.document = document
        self.subject = _part(document, document.subject, "subject")
        self.html = _part(document, document.html, "html")
        self.text = _part(document, document.text, "text")
        headers = {name: _part(document, value, "headers") for name, value in document.headers.items()}
        self.headers = {name: part for name, part in headers.items() if part is not None}
        lines = [part for part in (self.subject, *self.headers.values()) if part is not None]
        bodies = [part for part in (self.html, self.text) if part is not None]
        self._subject_names = frozenset[str]().union(*(part.names for part in lines))
        self._names = self._subject_names.union(*(part.names for part in bodies))
        self._verbatim = Rendered(document.subject, document.html, document.text, dict(document.headers))

    def names(self) -> frozenset[str]:
        """The variables that the document refers to anywhere: by static analysis, so that a branch never taken counts,
        and one with a `default`, too. Whether values suffice for a rendering, only `check` tells.
        """
        return self._names

    def subject_names(self) -> frozenset[str]:
        """Those of the subject and of header values: their values must not hold line breaks."""
        return self._subject_names

    def held(self) -> int:
        """The memory that it takes together with its document, in bytes."""
        document = self.document
        texts = [document.subject, document.html, document.text, *document.headers, *document.headers.values()]
        parts = [part for part in (self.subject, self.html, self.text, *self.headers.values()) if part is not None]
        return _SHELL + sum(map(sys.getsizeof, texts)) + sum(part.held for part in parts)

    def render(self, variables: Mapping[str, object], now: datetime) -> Rendered:
        """A pure function of the document, `variables` (JSON values) and `now` (aware; all that `now` can mean inside).

        Raises RenderError. `variables` are not changed.
        """
        document = self.document
        if not document.liquid:
            return self._verbatim
        if now.tzinfo is None:
            raise ValueError("now must be aware: a naive time means another moment on every machine")
        now = now.astimezone(UTC)
        budget = Budget(BUDGET)
        html, text = document.html, document.text
        subject = self._subject_line(variables, now, budget)
        if self.html is not None:
            html = self.html.render(variables, now, budget, "html")
        if self.text is not None:
            text = self.text.render(variables, now, budget, "text")
        _check_bodies(html, text)
        return Rendered(subject, html, text, self._header_lines(variables, now, budget))

    def _subject_line(self, variables: Mapping[str, object], now: datetime, budget: Budget) -> str:
        if self.subject is None:
            return self.document.subject
        subject = _line(self.subject.render(variables, now, budget, "subject"), MAX_SUBJECT, "subject")
        if not subject.strip():
            raise RenderError("rendered_empty_subject", "the subject is empty with these values", "subject")
        return subject

    def _header_lines(self, variables: Mapping[str, object], now: datetime, budget: Budget) -> dict[str, str]:
        rendered = {
            name: _line(part.render(variables, now, budget, "headers"), MAX_HEADER_VALUE, "headers")
            for name, part in self.headers.items()
        }
        return {**self.document.headers, **rendered}

    def check(self, variables: Mapping[str, object], now: datetime) -> None:
        """Renders and throws away: raises InvalidInput for what could not be rendered at a claim either, and a
        MessagingError of no such kind for a fault of ours."""
        try:
            self.render(variables, now)
        except RenderError as error:
            raise _told(error) from None

    def check_lines(self, variables: Mapping[str, object], now: datetime, others: int) -> None:
        """As `check`, for bodies that cannot fail (`channels.email.certain`) and cost at most `others` units."""
        budget = Budget(BUDGET - others)
        try:
            self._subject_line(variables, now, budget)
            self._header_lines(variables, now, budget)
        except RenderError as error:
            if error.code != "template_too_costly":
                raise _told(error) from None
            self.check(variables, now)


def _told(error: RenderError) -> MessagingError:
    message = f"{error.part}: {error.detail}"
    if error.code == "render_bug":
        return MessagingError(error.code, message)
    by_value = error.code in ("undefined_variable", "rendered_header_injection")
    return InvalidInput(error.code, message, field="variables" if by_value else error.part)


def compile_document(document: Document) -> Template:
    """Costs about as much as ten renders: keep the result. Raises InvalidInput as `Document.parse` does."""
    return Template(document)


def _part(document: Document, source: str | None, field: str) -> Part | None:
    if source is None or not document.liquid or not has_markup(source):
        return None
    return compile_source(source, field, autoescape=field == "html")


def _line(text: str, limit: int, part: str) -> str:
    if UNSAFE.search(text):
        raise RenderError(
            "rendered_header_injection", "a value brings a line break or control character into this line", part
        )
    if len(text) > limit:
        raise RenderError("rendered_too_large", f"more than {limit} characters with these values", part)
    return text


def _check_bodies(html: str | None, text: str | None) -> None:
    size = 0
    for part, body in (("html", html), ("text", text)):
        if body is None:
            continue
        if "\0" in body:
            raise RenderError("rendered_invalid_text", "a filter made a NUL character", part)
        size += len(body) if body.isascii() else len(body.encode())
        if size > MAX_BODY_BYTES:
            raise RenderError("rendered_too_large", f"html and text exceed {MAX_BODY_BYTES} bytes", part)
    if not (html and html.strip()) and not (text and text.strip()):
        raise RenderError(
            "rendered_empty_body", "html and text are empty with these values", "html" if html is not None else "text"
        )
