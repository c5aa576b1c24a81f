"""The demo's page: whole by itself, and true to the run."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from devtools.demo.depth import Depth, DepthSampler
from devtools.demo.figures import Bounds, Evidence, compute, failures
from devtools.demo.report import report
from tests.devtools.test_demo_figures import LAUNCH, good

RAN = [("machine", "2 cores <fast>"), ("options", "--rate 10")]


def observed() -> Evidence:
    """The good run, with what was seen over time: a request every 100 ms, one 429, three looks at the depth."""
    evidence = good()
    return replace(
        evidence,
        accepting={number: LAUNCH + number / 10 for number in range(len(evidence.batches))},
        too_many_per_second=[(int(LAUNCH), 1)],
        depths=[Depth(LAUNCH, 0, 600), Depth(LAUNCH + 0.5, 2, 300), Depth(LAUNCH + 1, 0, 0)],
    )


def page_of(evidence: Evidence) -> str:
    figures = compute(evidence)
    return report(evidence, figures, failures(figures, Bounds()), RAN)


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.found if tag == name]


def test_the_page_needs_nothing_else() -> None:
    elements = Elements(page := page_of(observed()))
    assert elements.open == []
    assert elements.named("script") == elements.named("img") == elements.named("iframe") == []
    assert [link["href"] for link in elements.named("link")] == ["data:,"]
    assert not re.search(r"@import|url\((?!#)|src=", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}, "a namespace, not a place"


def test_every_chart_is_there_for_both_widths_and_can_be_named() -> None:
    elements = Elements(page_of(observed()))
    charts = elements.named("svg")
    assert len(charts) == 2 * len(elements.named("figure")) == 10
    assert all(chart["role"] == "img" and chart["aria-labelledby"] for chart in charts)
    ids = [attrs["id"] for _, attrs in elements.found if attrs.get("id")]
    assert len(ids) == len(set(ids))
    assert {attrs["scope"] for attrs in elements.named("th")} == {"row", "col"}
    assert len(elements.named("caption")) == len(elements.named("table")) == 3
    assert elements.named("html") == [{"lang": "en"}]


def test_the_marks_are_the_run() -> None:
    page = page_of(observed())
    wide = {m[1]: m[0] for m in re.findall(r'(<svg[^>]*aria-labelledby="(\w+)-wide-title.*?</svg>)', page, re.S)}
    assert set(wide) == {"codes", "requests", "marketing", "transactional", "fill"}
    assert wide["codes"].count("<circle") == 4
    assert wide["fill"].count("<circle") == 10
    assert wide["requests"].count("<rect") == 3, "one second: of the blast, of codes, of 429s"
    assert all(words in wide["codes"] for words in ("p50 200 ms", "p95 400 ms", "p99 400 ms", "1 s: the bar"))
    assert "10/s: the limit" in wide["requests"]
    assert "never more than 2." in page


def test_a_run_that_passed_says_so_and_one_that_failed_says_why() -> None:
    page = page_of(observed())
    assert "All conditions met" in page
    assert "2 cores &lt;fast&gt;" in page
    bad = page_of(replace(observed(), tokens=9))
    assert "All conditions met" not in bad
    assert "One condition not met" in bad
    assert "The provider got 10 requests for 9 tokens" in bad


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(replace(good(), submitted={}), id="no codes"),
        pytest.param(
            replace(good(), sends=[], batches=[], at_provider=[], submitted={}, post_seconds=[]), id="nothing at all"
        ),
    ],
)
def test_a_run_without_something_still_has_a_page(evidence: Evidence) -> None:
    assert "Nothing was recorded." in page_of(evidence)


def test_the_depth_is_looked_at_once_a_second() -> None:
    looks = iter(Depth(float(n), 0, n) for n in range(9))
    sampler = DepthSampler(lambda: next(looks))
    for _ in range(5):
        sampler.sample()
    assert len(sampler.depths) == 1
    sampler.take()
    assert [depth.at for depth in sampler.depths] == [0.0, 1.0]
