"""The charts: pure functions from data to SVG. Colours and widths are the page's (`style.css`), by class.

A series has a `style`, the name of its look: `one` and `two` are filled dots, lines or bars in two hues, `three` is a ring
or an outlined bar, `bad` is hatched; no two differ by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from devtools.report.frame import Frame, Labels, Rule, Size, empty
from devtools.report.svg import Markup, tag

Point = tuple[float, float]

#: Dots that are drawn at most: beyond that they lie on each other, and the page grows for nothing.
MAX_DOTS = 1_200
_DOT = 3.2
_HEADROOM = 1.1


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    style: str
    points: Sequence[Point]


def scatter(
    labels: Labels,
    series: Sequence[Series],
    size: Size,
    *,
    rules: Sequence[Rule] = (),
    x_end: float | None = None,
    y_ends: tuple[float, float] | None = None,
    log: bool = False,
) -> Markup:
    """A dot for each point. `y_ends`: of the axis, else from 0 to a little above all. With `log` they must be given."""
    points = [point for one in series for point in one.points]
    if not points:
        return empty(labels, size)
    frame = _frame(labels, size, points, rules, x_end, y_ends, log=log)
    marks = [
        tag("g", *(_dot(frame, point, one.style) for point in thinned(one.points)), class_=f"dots {one.style}")
        for one in series
    ]
    return frame.draw(marks)


def steps(
    labels: Labels,
    series: Sequence[Series],
    size: Size,
    *,
    rules: Sequence[Rule] = (),
    x_end: float | None = None,
) -> Markup:
    """A line for each series, its value kept until the next point, over an area."""
    points = [point for one in series for point in one.points]
    if not points:
        return empty(labels, size)
    frame = _frame(labels, size, points, rules, x_end, None)
    marks = [tag("g", *_step_line(frame, thinned(one.points)), class_=f"line {one.style}") for one in series]
    return frame.draw(marks)


def stacked(
    labels: Labels,
    series: Sequence[Series],
    size: Size,
    *,
    rules: Sequence[Rule] = (),
    x_end: float | None = None,
) -> Markup:
    """A bar for each whole number on the x axis, the series on top of each other; the first is the lowest.

    Where there are more bars than fit, one stands for several and shows their mean.
    """
    if not any(one.points for one in series):
        return empty(labels, size)
    end = max(x_end or 0.0, *(x + 1 for one in series for x, _ in one.points))
    width = _bar_width(end, size.bars)
    heights = [_binned(one.points, width) for one in series]
    totals = [(at, sum(found.get(at, 0.0) for found in heights)) for found in heights for at in found]
    frame = _frame(labels, size, totals, rules, end, None)
    lower: dict[float, float] = {}
    marks: list[Markup] = []
    for one, found in zip(series, heights, strict=True):
        bars: list[Markup] = []
        for at, height in sorted(found.items()):
            below = lower.get(at, 0.0)
            lower[at] = below + height
            if height:
                bars.append(_bar(frame, at, width, below, below + height))
        marks.append(tag("g", *bars, class_=f"bars {one.style}", **_hatched(labels, size, one.style)))
    return frame.draw(marks, [_hatch(labels, size)])


def thinned(points: Sequence[Point], most: int = MAX_DOTS) -> Sequence[Point]:
    """At most about `most` of the points, in order of x: of neighbours, the highest and the last stay."""
    ordered = sorted(points)
    if len(ordered) <= most:
        return ordered
    group = -(-len(ordered) * 2 // most)
    kept: list[Point] = []
    for start in range(0, len(ordered), group):
        some = ordered[start : start + group]
        kept += sorted({max(some, key=lambda point: point[1]), some[-1]})
    return kept


# ---------------------------------------------------------------------------------------------------------- parts


def _frame(
    labels: Labels,
    size: Size,
    points: Sequence[Point],
    rules: Sequence[Rule],
    x_end: float | None,
    y_ends: tuple[float, float] | None,
    *,
    log: bool = False,
) -> Frame:
    if y_ends is None:
        highest = max(*(y for _, y in points), *(rule.value for rule in rules), 0.0)
        y_ends = (0.0, highest * _HEADROOM or 1.0)
    right = max([x for x, _ in points] if x_end is None else [x_end])
    return Frame.make(labels, size, x=(0.0, right or 1.0), y=y_ends, rules=rules, log=log)


def _dot(frame: Frame, point: Point, style: str) -> Markup:
    x, y = point
    return tag("circle", cx=frame.x(x), cy=frame.y(y), r=_DOT if style != "three" else _DOT - 0.4)


def _step_line(frame: Frame, points: Sequence[Point]) -> list[Markup]:
    if len(points) < 2:
        return [_dot(frame, point, "") for point in points]
    at = [(frame.x(x), frame.y(y)) for x, y in points]
    path = f"M{at[0][0]:.1f} {at[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in at[1:])
    floor = frame.y(0.0)
    return [
        tag("path", d=f"{path}V{floor:.1f}H{at[0][0]:.1f}Z", class_="area"),
        tag("path", d=path, class_="stroke"),
    ]


def _bar_width(end: float, most: int) -> int:
    """How many whole numbers one bar stands for."""
    return max(1, -(-int(end) // most))


def _binned(points: Sequence[Point], width: int) -> dict[float, float]:
    found: dict[float, float] = {}
    for x, y in points:
        at = float(int(x) // width * width)
        found[at] = found.get(at, 0.0) + y / width
    return found


def _bar(frame: Frame, at: float, width: int, low: float, high: float) -> Markup:
    left, right = frame.x(at), frame.x(at + width)
    gap = 1.0 if right - left > 4 else 0.0
    top = frame.y(high)
    return tag("rect", x=left + gap / 2, y=top, width=right - left - gap, height=frame.y(low) - top)


def _hatch(labels: Labels, size: Size) -> Markup:
    stripe = tag("path", d="M0 4L4 0M-1 1L1 -1M3 5L5 3")
    pattern = tag(
        "pattern", stripe, id=f"{labels.key}-{size.name}-hatch", width=4, height=4, patternUnits="userSpaceOnUse"
    )
    return tag("defs", pattern)


def _hatched(labels: Labels, size: Size, style: str) -> dict[str, str]:
    return {"fill": f"url(#{labels.key}-{size.name}-hatch)"} if style == "bad" else {}
