"""Charts: from data to SVG. What is drawn is counted; how it looks is for eyes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from devtools.report.charts import MAX_DOTS, Series, scatter, stacked, steps, thinned
from devtools.report.frame import NARROW, SIZES, WIDE, Labels, Rule, Size, spread
from devtools.report.scales import Linear, Log, nice_step, time_unit
from devtools.report.svg import Markup, number, safe, tag

SVG = "{http://www.w3.org/2000/svg}"
LABELS = Labels("key", "A title", "What it shows", "seconds", "requests")
HOSTILE = "<script>\"'&\x00\x1b</script>"

Draw = Callable[..., Markup]
CHARTS: list[Draw] = [scatter, steps, stacked]


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def marks(svg: str, name: str, style: str | None = None) -> list[ElementTree.Element]:
    """Elements of that name among the marks, of one series or all."""
    (group,) = (g for g in parsed(svg).iter(f"{SVG}g") if g.get("class") == "marks")
    found = [g for g in group if style is None or style in (g.get("class") or "").split()]
    return [element for g in found for element in g.iter(f"{SVG}{name}")]


def numbers(element: ElementTree.Element, *names: str) -> list[float]:
    return [float(element.get(name, "nan")) for name in names]


# ------------------------------------------------------------------------------------------------------- every chart


@pytest.mark.parametrize("draw", CHARTS)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
@pytest.mark.parametrize("points", [[], [(0.0, 0.0)], [(3.0, 7.0)], [(0.0, 1.0), (1.0, 2.0), (2.0, 0.5)]])
def test_every_chart_is_valid_named_and_within_its_frame(draw: Draw, size: Size, points: list[Any]) -> None:
    svg = draw(LABELS, [Series("a", "one", points), Series("b", "bad", [])], size, **_needed(draw))
    root = parsed(svg)
    assert root.get("role") == "img"
    ids = {element.get("id") for element in root.iter() if element.get("id")}
    assert set((root.get("aria-labelledby") or "").split()) <= ids
    assert [root.find(f"{SVG}{name}").text for name in ("title", "desc")] == ["A title", "What it shows"]  # type: ignore[union-attr]
    assert "nan" not in svg
    assert "inf" not in svg
    for element in root.iter():
        for x, y in (("x", "y"), ("cx", "cy"), ("x1", "y1")):
            if element.get(x):
                across, down = numbers(element, x, y)
                assert 0 <= across <= size.width
                assert 0 <= down <= size.height
    assert ("Nothing was recorded." in svg) == (not points)


def _needed(draw: Draw) -> dict[str, Any]:
    return {"rules": [Rule(5.0, "five", "limit")]} if draw is not steps else {}


@pytest.mark.parametrize("draw", CHARTS)
def test_text_from_outside_stays_text(draw: Draw) -> None:
    labels = Labels("key", HOSTILE, HOSTILE, HOSTILE, HOSTILE, y_format=lambda value: HOSTILE)
    svg = draw(labels, [Series(HOSTILE, "one", [(1.0, 1.0), (2.0, 3.0)])], WIDE, rules=[Rule(1.0, HOSTILE)])
    root = parsed(svg)
    assert "script" not in {element.tag.removeprefix(SVG) for element in root.iter()}
    assert root.find(f"{SVG}title").text == HOSTILE.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")  # type: ignore[union-attr]


def test_ids_of_one_chart_in_two_sizes_differ() -> None:
    page = "".join(stacked(LABELS, [Series("a", "bad", [(0.0, 1.0)])], size) for size in SIZES)
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) == 6


# ------------------------------------------------------------------------------------------------------------ scatter


def test_a_dot_for_each_point_of_each_series() -> None:
    series = [
        Series("a", "one", [(float(n), float(n)) for n in range(20)]),
        Series("b", "three", [(1.0, 1.0)]),
    ]
    svg = scatter(LABELS, series, WIDE)
    assert (len(marks(svg, "circle", "one")), len(marks(svg, "circle", "three"))) == (20, 1)


def test_higher_is_above_and_later_is_to_the_right() -> None:
    first, second = marks(scatter(LABELS, [Series("a", "one", [(1.0, 1.0), (2.0, 5.0)])], WIDE), "circle")
    assert numbers(first, "cx") < numbers(second, "cx")
    assert numbers(first, "cy") > numbers(second, "cy")


def test_a_logarithmic_axis_gives_each_tenfold_the_same_room() -> None:
    points = [(float(n), 10.0**n) for n in range(4)]
    svg = scatter(LABELS, [Series("a", "one", points)], WIDE, y_ends=(1.0, 1000.0), log=True)
    at = [numbers(circle, "cy")[0] for circle in marks(svg, "circle")]
    assert [a - b for a, b in itertools.pairwise(at)] == pytest.approx([at[0] - at[1]] * 3, abs=0.2)


def test_what_is_beyond_the_axis_is_drawn_at_its_end() -> None:
    svg = scatter(LABELS, [Series("a", "one", [(1.0, 1e9), (2.0, -5.0)])], WIDE, y_ends=(0.0, 10.0))
    assert [numbers(c, "cy")[0] for c in marks(svg, "circle")] == [WIDE.top, WIDE.height - WIDE.bottom]


def test_very_many_points_are_thinned_and_the_slowest_stays() -> None:
    points = [(float(n), 1.0) for n in range(100_000)]
    points[77_777] = (77_777.0, 9.0)
    kept = thinned(points)
    assert MAX_DOTS * 0.4 < len(kept) <= MAX_DOTS
    assert (77_777.0, 9.0) in kept
    assert kept[-1] == points[-1]
    assert list(kept) == sorted(kept)
    assert len(marks(scatter(LABELS, [Series("a", "one", points)], WIDE), "circle")) == len(kept)


# -------------------------------------------------------------------------------------------------------------- steps


def test_a_line_keeps_its_value_until_the_next_point() -> None:
    svg = steps(LABELS, [Series("a", "two", [(0.0, 4.0), (5.0, 2.0), (10.0, 0.0)])], WIDE)
    area, line = marks(svg, "path")
    assert re.fullmatch(r"M[\d.]+ [\d.]+(H[\d.]+V[\d.]+){2}", line.get("d") or "")
    assert (area.get("d") or "").endswith("Z")


def test_one_point_is_a_dot() -> None:
    svg = steps(LABELS, [Series("a", "two", [(3.0, 4.0)])], WIDE)
    assert len(marks(svg, "circle")) == 1
    assert marks(svg, "path") == []


# ------------------------------------------------------------------------------------------------------------ stacked


def test_bars_stand_on_each_other() -> None:
    series = [Series("low", "two", [(0.0, 6.0), (1.0, 5.0)]), Series("high", "one", [(0.0, 3.0), (1.0, 0.0)])]
    svg = stacked(LABELS, series, WIDE)
    low, second = marks(svg, "rect", "two")
    (high,) = marks(svg, "rect", "one")  # nothing is drawn for 0
    assert numbers(high, "x") == numbers(low, "x")
    assert float(high.get("y", 0)) + float(high.get("height", 0)) == pytest.approx(float(low.get("y", 0)), abs=0.2)
    assert float(low.get("height", 0)) / float(second.get("height", 0)) == pytest.approx(6 / 5, abs=0.01)


def test_more_bars_than_fit_are_put_together_as_their_mean() -> None:
    series = [Series("a", "one", [(float(n), 10.0) for n in range(NARROW.bars * 3)])]
    svg = stacked(LABELS, series, NARROW, rules=[Rule(10.0, "10")])
    bars = marks(svg, "rect")
    assert len(bars) == NARROW.bars
    (rule,) = (g for g in parsed(svg).iter(f"{SVG}g") if g.get("class") == "rule found")
    (line,) = rule.iter(f"{SVG}line")
    assert {bar.get("y") for bar in bars} == {line.get("y1")}, "the mean of tens is ten"


def test_what_is_bad_is_hatched() -> None:
    svg = stacked(LABELS, [Series("429", "bad", [(0.0, 1.0)])], WIDE)
    (group,) = (g for g in parsed(svg).iter(f"{SVG}g") if g.get("class") == "bars bad")
    (pattern,) = parsed(svg).iter(f"{SVG}pattern")
    assert group.get("fill") == f"url(#{pattern.get('id')})"


# ------------------------------------------------------------------------------------------------------------- scales


@pytest.mark.parametrize(
    ("span", "count", "step"), [(10, 5, 2), (100, 5, 20), (0.7, 5, 0.2), (30_000, 4, 10_000), (0, 5, 1)]
)
def test_nice_steps(span: float, count: int, step: float) -> None:
    assert nice_step(span, count) == pytest.approx(step)


def test_ticks_are_round_and_within() -> None:
    assert Linear(0, 33, 0, 1).ticks(5) == [0, 10, 20, 30]
    assert Linear(0, 2.2, 0, 1, least=1).ticks(5) == [0, 1, 2], "no half a login code"
    assert [round(v) for v in Log(40, 2000, 0, 1).ticks(5)] == [50, 100, 200, 500, 1000, 2000]
    assert all(math.log10(v) % 1 < 1e-9 for v in Log(1, 1e9, 0, 1).ticks(5))


def test_time_units() -> None:
    assert [time_unit(s)[0] for s in (50, 301, 100_000)] == ["seconds", "minutes", "hours"]


@pytest.mark.parametrize(
    "places", [[], [10.0], [10.0, 12.0, 11.0], [0.0, 100.0, 101.0, 102.0, 30.0], [5.0] * 6], ids=str
)
def test_labels_are_spread_and_keep_their_order(places: list[float]) -> None:
    spread_out = spread(places, 15)
    ordered = sorted(spread_out)
    assert all(b - a >= 15 - 1e-9 for a, b in itertools.pairwise(ordered))
    order = sorted(range(len(places)), key=lambda i: places[i])
    assert [spread_out[i] for i in order] == ordered
    assert sum(spread_out) == pytest.approx(sum(places)), "moved up as much as down"


def test_elements() -> None:
    assert tag("a", "x < y", Markup("<b/>"), class_="k", font_size=1.25, href=None) == (
        '<a class="k" font-size="1.2">x &lt; y<b/></a>'
    )
    assert tag("line", x1=2.0) == '<line x1="2"/>'
    assert safe(Markup("<b/>")) == "<b/>"
    assert number(10.04) == "10"
