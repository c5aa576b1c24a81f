"""What every chart has around its marks: the size, the axes with their grid, values that are marked across, a name for
those who cannot see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from devtools.report.scales import Linear, Log, Scale
from devtools.report.svg import Markup, tag

#: Pixels between two labels of marked values, so that both can be read; of a character, at most.
_LABEL_HEIGHT = 15.0
_CHARACTER = 7.2
#: From the plot to what is written beside it.
_GAP = 8.0


@dataclass(frozen=True, slots=True)
class Size:
    """In pixels of the SVG: the whole, and the margins around the plot. Those beside it are at least so wide, that the
    charts of a page stand in line, and wider if what is written there is."""

    name: str
    width: int
    height: int
    left: int = 0
    right: int = 0
    top: int = 28
    bottom: int = 42
    x_ticks: int = 8
    y_ticks: int = 5
    bars: int = 180  # at most; more than that are put together


WIDE = Size("wide", 960, 310, left=52, right=100)
#: A telephone's width: the same text size on fewer pixels.
NARROW = Size("narrow", 342, 270, x_ticks=4, bars=56)
SIZES = (WIDE, NARROW)


@dataclass(frozen=True, slots=True)
class Labels:
    """`key` is unique on the page. `title` and `description` are what a screen reader says in place of the picture."""

    key: str
    title: str
    description: str
    x: str
    y: str
    y_format: Callable[[float], str] = "{:,.0f}".format
    y_step: float = 1.0  # the smallest between two values on the axis


@dataclass(frozen=True, slots=True)
class Rule:
    """A value that is marked across the plot. `style`: `limit` (what must not be passed) or `found` (what was measured)."""

    value: float
    label: str
    style: str = "found"


@dataclass(frozen=True, slots=True)
class Frame:
    labels: Labels
    size: Size
    x: Linear
    y: Scale
    rules: Sequence[Rule] = ()

    @classmethod
    def make(
        cls,
        labels: Labels,
        size: Size,
        *,
        x: tuple[float, float],
        y: tuple[float, float],
        rules: Sequence[Rule] = (),
        log: bool = False,
    ) -> Frame:
        bottom, top = size.height - size.bottom, size.top
        scale: Scale = Log(*y, bottom, top) if log else Linear(*y, bottom, top, least=labels.y_step)
        left = _widest(labels.y_format(value) for value in scale.ticks(size.y_ticks)) + _GAP
        right = _widest(rule.label for rule in rules) + 1.5 * _GAP
        left, right = max(left, size.left), max(right, size.right)
        return cls(labels, size, Linear(*x, left, size.width - right), scale, rules)

    def draw(self, marks: Sequence[Markup], extra: Sequence[Markup] = ()) -> Markup:
        """The SVG. `extra`: definitions that the marks refer to."""
        return picture(
            self.labels,
            self.size,
            *extra,
            tag("g", *self._grid(), class_="grid"),
            tag("g", *marks, class_="marks"),
            tag("g", *self._rules(), class_="rules"),
            tag("g", *self._axes(), class_="axes"),
        )

    # ------------------------------------------------------------------------------------------------ parts

    def _grid(self) -> list[Markup]:
        return [
            tag("line", x1=self.x.start, x2=self.x.end, y1=self.y(value), y2=self.y(value))
            for value in self.y.ticks(self.size.y_ticks)
        ]

    def _axes(self) -> list[Markup]:
        size, bottom = self.size, self.size.height - self.size.bottom
        drawn = [tag("line", x1=self.x.start, x2=self.x.end, y1=bottom, y2=bottom)]
        for value in self.x.ticks(size.x_ticks):
            at = self.x(value)
            drawn.append(tag("line", x1=at, x2=at, y1=bottom, y2=bottom + 5))
            drawn.append(tag("text", f"{value:,g}", x=at, y=bottom + 19, text_anchor="middle"))
        drawn += [
            tag("text", self.labels.y_format(value), x=self.x.start - _GAP, y=self.y(value) + 4, text_anchor="end")
            for value in self.y.ticks(size.y_ticks)
        ]
        middle = (self.x.start + self.x.end) / 2
        drawn.append(tag("text", self.labels.x, x=middle, y=size.height - 4, text_anchor="middle", class_="name"))
        drawn.append(tag("text", self.labels.y, x=0, y=12, class_="name"))
        return drawn

    def _rules(self) -> list[Markup]:
        left, right = self.x.start, self.x.end
        drawn: list[Markup] = []
        places = spread([self.y(rule.value) for rule in self.rules], _LABEL_HEIGHT)
        for rule, place in zip(self.rules, places, strict=True):
            at = self.y(rule.value)
            line = tag("line", x1=left, x2=right, y1=at, y2=at)
            leader = tag("path", d=f"M{right:.1f} {at:.1f}L{right + _GAP:.1f} {place:.1f}")
            label = tag("text", rule.label, x=right + 1.3 * _GAP, y=place + 4)
            drawn.append(tag("g", line, leader, label, class_=f"rule {rule.style}"))
        return drawn


def spread(places: Sequence[float], gap: float) -> list[float]:
    """The places, moved as little as it takes for any two to be `gap` apart; their order stays."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    # Groups of labels that touch: each is centred on the mean of what its members want.
    groups: list[list[int]] = []

    def top(group: list[int]) -> float:
        return sum(places[i] for i in group) / len(group) - gap * (len(group) - 1) / 2

    for index in order:
        groups.append([index])
        while len(groups) > 1 and top(groups[-2]) + gap * len(groups[-2]) > top(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    found = list(places)
    for group in groups:
        for number, index in enumerate(group):
            found[index] = top(group) + gap * number
    return found


def _widest(texts: Iterable[str]) -> float:
    return _CHARACTER * max(map(len, texts), default=0)


def picture(labels: Labels, size: Size, *parts: Markup) -> Markup:
    """The SVG element, with the name and the words that stand for it."""
    key = f"{labels.key}-{size.name}"
    return tag(
        "svg",
        tag("title", labels.title, id=f"{key}-title"),
        tag("desc", labels.description, id=f"{key}-desc"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {size.width} {size.height}",
        class_=f"chart {size.name}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
    )


def empty(labels: Labels, size: Size) -> Markup:
    """A chart of nothing: its place, and a sentence."""
    middle = {"x": size.width / 2, "y": size.height / 2, "text_anchor": "middle"}
    return picture(labels, size, tag("text", "Nothing was recorded.", class_="nothing", **middle))
