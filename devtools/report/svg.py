"""Elements of SVG (and HTML) as text. Whatever is put in is escaped, unless an element made it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

#: What XML cannot hold, however it is written.
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def safe(content: object) -> Markup:
    """Markup as it is; anything else as text."""
    if isinstance(content, Markup):
        return content
    return Markup(escape(_UNFIT.sub("\ufffd", str(content))))


def join(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between.join(safe(part) for part in parts))


def tag(name: str, /, *inner: object, **attributes: object) -> Markup:
    """`tag("text", "a < b", class_="label", text_anchor="end")`. An attribute that is None is left out; numbers are
    written short. Without content the element closes itself, as SVG allows and HTML ignores for void elements."""
    opened = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(number(value) if isinstance(value, float) else value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{opened}>{join(inner)}</{name}>" if inner else f"<{name}{opened}/>")


def number(value: float) -> str:
    """A tenth of a pixel is enough: `12.5`, `12`."""
    return f"{value:.1f}".removesuffix(".0")
