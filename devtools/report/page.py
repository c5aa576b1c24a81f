"""The document around charts and tables: one file that needs nothing else, readable on a telephone, on paper, and in
light and dark. No script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from devtools.report.charts import Series
from devtools.report.frame import SIZES, Size
from devtools.report.svg import Markup, join, tag

_STYLE = Path(__file__).with_name("style.css")


def document(title: str, body: Sequence[Markup]) -> str:
    head = [
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        # An empty icon: a browser would otherwise ask for one.
        Markup('<link rel="icon" href="data:,">'),
        tag("title", title),
        tag("style", Markup(_STYLE.read_text(encoding="utf-8"))),
    ]
    page = tag("html", tag("head", *head), tag("body", tag("main", join(body, "\n"))), lang="en")
    return f"<!doctype html>\n{page}\n"


def section(heading: str, *parts: Markup) -> Markup:
    return tag("section", tag("h2", heading), *parts)


def paragraph(*parts: object, class_: str | None = None) -> Markup:
    return tag("p", *parts, class_=class_)


def figure(
    heading: str, words: str, draw: Callable[[Size], Markup], legend: Sequence[Series] = (), note: str = ""
) -> Markup:
    """A chart in each size (the style sheet shows the one that fits), its heading and what it says above it."""
    caption = tag("figcaption", tag("h2", heading), tag("p", words))
    parts = [caption, *([_legend(legend)] if len(legend) > 1 else []), *map(draw, SIZES)]
    if note:
        parts.append(paragraph(note, class_="note"))
    return tag("figure", *parts)


def tiles(values: Sequence[tuple[str, str, str]]) -> Markup:
    """Figures to be seen first: (what, value, compared with what)."""
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value, tag("small", beside)), class_="tile")
            for name, value, beside in values
        ),
        class_="tiles",
    )


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """The first column names the row; the others are numbers."""
    parts = [tag("caption", caption)]
    parts.append(tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    return tag("div", tag("table", *parts, tag("tbody", *body), class_="numbers"), class_="wide-table")


def facts(caption: str, rows: Sequence[tuple[str, str]]) -> Markup:
    """A table of names and what there is to say."""
    body = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in rows]
    return tag("table", tag("caption", caption), tag("tbody", *body), class_="facts")


def listing(items: Sequence[str], class_: str | None = None) -> Markup:
    return tag("ul", *(tag("li", item) for item in items), class_=class_)


def _legend(series: Sequence[Series]) -> Markup:
    items = [tag("li", tag("span", Markup(""), class_=f"key {one.style}"), one.name) for one in series]
    return tag("ul", *items, class_="legend", aria_hidden="true")
