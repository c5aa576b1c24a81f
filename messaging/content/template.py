"""A compiled document, and what comes of it with one recipient's values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from messaging.addresses import UNSAFE
from messaging.content.document import MAX_BODY_BYTES, MAX_HEADER_VALUE, MAX_SUBJECT, Document
from messaging.content.filters import Budget
from messaging.content.liquid import compile_source, has_markup
from messaging.content.runtime import BUDGET, Part, RenderError
from messaging.errors import InvalidInput

__all__ = ["RenderError", "Rendered", "Template", "compile_document"]


@dataclass(frozen=True, slots=True)
class Rendered:
    subject: str
    html: str | None
    text: str | None
    headers: Mapping[str, str]


class Template:
    """A document ready to render. Immutable; threads may share it. Make it with `compile_document`."""

    __slots__ = ("_headers", "_html", "_names", "_subject", "_subject_names", "_text", "_verbatim", "document")

    def __init__(self, document: Document) -> None:
        self.document = document
        self._subject = _part(document, document.subject, "subject")
        self._html = _part(document, document.html, "html")
        self._text = _part(document, document.text, "text")
        headers = {name: _part(document, value, "headers") for name, value in document.headers.items()}
        self._headers = {name: part for name, part in headers.items() if part is not None}
        lines = [part for part in (self._subject, *self._headers.values()) if part is not None]
        bodies = [part for part in (self._html, self._text) if part is not None]
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
        subject, html, text, headers = document.subject, document.html, document.text, document.headers
        if self._subject is not None:
            subject = _line(self._subject.render(variables, now, budget, "subject"), MAX_SUBJECT, "subject")
            if not subject.strip():
                raise RenderError("rendered_empty_subject", "the subject is empty with these values", "subject")
        if self._html is not None:
            html = self._html.render(variables, now, budget, "html")
        if self._text is not None:
            text = self._text.render(variables, now, budget, "text")
        _check_bodies(html, text)
        if self._headers:
            rendered = {
                name: _line(part.render(variables, now, budget, "headers"), MAX_HEADER_VALUE, "headers")
                for name, part in self._headers.items()
            }
            headers = {**headers, **rendered}
        return Rendered(subject, html, text, dict(headers))

    def check(self, variables: Mapping[str, object], now: datetime) -> None:
        """Renders and throws away: raises InvalidInput for what could not be rendered at a claim either."""
        try:
            self.render(variables, now)
        except RenderError as error:
            by_value = error.code in ("undefined_variable", "rendered_header_injection")
            raise InvalidInput(
                error.code,
                f"{error.part}: {error.detail}",
                field="variables" if by_value else error.part,
            ) from None


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
