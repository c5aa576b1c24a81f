"""What the bench computes from what it found, and how it shows it."""

from __future__ import annotations

import argparse
import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from devtools.bench import figures, goals, table
from devtools.bench.goals import Figure, at_least, at_most
from devtools.bench.limit import run as run_limit
from devtools.bench.options import SECTIONS, Options, add_arguments, options_from
from devtools.bench.planning import write_list
from devtools.bench.run import RUNNERS, arguments
from devtools.bench.steps import split


def test_spread() -> None:
    found = figures.spread(range(100, 0, -1))
    assert (found.count, found.p50, found.p95, found.p99) == (100, 50, 95, 99)
    with pytest.raises(ValueError, match="nothing was measured"):
        figures.spread([])


def test_overall_rate_counts_from_the_start() -> None:
    assert figures.overall_rate([11, 12, 13, 14], since=10) == 1.0
    assert figures.overall_rate([], since=10) == 0.0
    assert figures.overall_rate([10], since=10) == 0.0


def test_steady_rate_leaves_out_start_and_end() -> None:
    """A slow start and a straggler say nothing about the rate in between."""
    moments = [0.0, *(10 + i / 100 for i in range(98)), 50.0]
    assert figures.steady_rate(moments) == pytest.approx(100)
    assert figures.overall_rate(moments, since=0) == 2.0
    for few in ([], [1.0], [1.0, 1.0]):
        assert figures.steady_rate(few) == 0.0


@pytest.mark.parametrize(("requests", "seconds"), [(50, 4.88), (1, 0.0), (0, 0.0)])
def test_physical_minimum(requests: int, seconds: float) -> None:
    assert figures.physical_minimum(requests, capacity=1.2, rate=10) == pytest.approx(seconds)


def test_per_thousand() -> None:
    assert figures.per_thousand(3, 1500) == 2.0
    assert figures.per_thousand(0, 0) == 0.0


def test_use_of_limit_takes_whole_seconds_only() -> None:
    seconds = [[9, 10, 0], [10, 8, 0], [11, 10, 0], [13, 6, 0], [14, 10, 0]]
    assert figures.use_of_limit(seconds, 10, 9.5, 14.9) == pytest.approx(24 / 40)  # 12 is missing: nothing came
    with pytest.raises(ValueError, match="whole second"):
        figures.use_of_limit(seconds, 10, 10.2, 11.8)


@pytest.mark.parametrize(
    ("counts", "index"), [([5, 5, 5], 1.0), ([9, 0, 0], 1 / 3), ([], 1.0), ([0, 0], 1.0), ([1, 2, 3], 36 / 42)]
)
def test_jain(counts: list[int], index: float) -> None:
    assert figures.jain(counts) == pytest.approx(index)


def test_windows_count_tenants_that_are_backlogged_through_to_their_end() -> None:
    accepted = {
        "steady": [i / 10 for i in range(300)],
        "greedy": [i / 30 for i in range(900)],
        "done": [0.1, 0.2],  # had nothing more to send: its silence is not unfair
    }
    until = figures.ran_out(accepted, {"steady": 1000, "greedy": 1000, "done": 2})
    assert until == {"steady": math.inf, "greedy": math.inf, "done": 0.2}
    found = list(figures.fairness_windows(accepted, until, start=0, end=12))
    assert len(found) == 3  # 0–10, 1–11, 2–12
    assert found == pytest.approx([(1 + 3) ** 2 / (2 * (1 + 9))] * 3)


def test_a_tenant_that_gets_nothing_is_seen() -> None:
    accepted: dict[str, list[float]] = {"fed": [1.0, 2.0], "starved": []}
    until = figures.ran_out(accepted, {"fed": 9, "starved": 9})
    assert list(figures.fairness_windows(accepted, until, start=0, end=10)) == [0.5]


def test_no_window_without_two_backlogged_tenants() -> None:
    assert list(figures.fairness_windows({"one": [1.0]}, {"one": math.inf}, start=0, end=20)) == []


def test_backlogs_are_far_apart() -> None:
    assert figures.backlogs(3, 10, 1_000) == [10, 100, 1_000]
    assert figures.backlogs(1, 10, 1_000) == [1_000]


@pytest.mark.parametrize(
    ("goal", "value", "met", "miss"),
    [
        (at_least(100), 100, True, 0),
        (at_least(100), 75, False, 0.25),
        (at_most(2), 2, True, 0),
        (at_most(2), 3, False, 0.5),
    ],
)
def test_goals(goal: goals.Goal, value: float, met: bool, miss: float) -> None:
    assert (goal.met(value), goal.miss(value)) == (met, miss)


def test_steps_add_up() -> None:
    names = ["replay", "candidates", "governor", "locks", "claim", "render", "encode", "open", "ticket", "request"]
    taken = {name: [1.0] for name in [*names, "ready", "settle", "record"]} | {"whole claim": [5.0], "batch": [20.0]}
    found = split(taken)
    assert (found["candidates"], found["commit"]) == ([2.0], [2.0])
    assert sum(values[0] for name, values in found.items() if name != "batch") == 20.0


FIGURES = [
    Figure("engine", "accepted", 7_500.0, "e-mails/s", "2 × 8 threads", goals.ENGINE, {"batches": 3}),
    Figure("fairness", "Jain's index", 0.99876, "", "10 tenants", goals.JAIN),
    Figure("steps", "claim", 1.234, "ms", "300 batches"),
]


def test_a_miss_says_by_how_much() -> None:
    assert [table.verdict(figure) for figure in FIGURES] == ["missed by 25.0%", "met", ""]
    assert [table.goal_text(f.goal, f.unit) for f in FIGURES] == ["≥ 10,000 e-mails/s", "≥ 0.9800", ""]


@pytest.mark.parametrize(
    ("value", "text"), [(123_456.7, "123,457"), (45.67, "45.7"), (4.567, "4.57"), (0.99876, "0.9988"), (3.0, "3")]
)
def test_numbers_have_the_digits_that_mean_something(value: float, text: str) -> None:
    assert table.number(value) == text


def test_without_a_terminal_the_table_is_plain() -> None:
    out = io.StringIO()
    table.show_all(FIGURES, Console(file=out, force_terminal=False))
    lines = out.getvalue().splitlines()
    assert len(lines) == len(FIGURES)
    assert (
        " ".join(lines[0].split()) == "engine accepted 7,500 e-mails/s ≥ 10,000 e-mails/s missed by 25.0% 2 × 8 threads"
    )
    out = io.StringIO()
    table.show_all(FIGURES, Console(file=out, force_terminal=True, width=160))
    assert "7,500 e-mails/s" in out.getvalue()


def test_markdown_and_json(tmp_path: Path) -> None:
    said = table.markdown(FIGURES, {"machine": "2 cores"})
    assert said.startswith("machine: 2 cores")
    assert "| engine | accepted | ≥ 10,000 e-mails/s | 7,500 e-mails/s | missed by 25.0% | 2 × 8 threads |" in said
    table.write_json(tmp_path / "bench.jsonl", FIGURES, {"machine": "2 cores"})
    about, first, *_ = [json.loads(line) for line in (tmp_path / "bench.jsonl").read_text().splitlines()]
    assert about == {"run": {"machine": "2 cores"}}
    assert (first["value"], first["goal"], first["batches"]) == (
        7500.0,
        {"value": 10_000, "most": False, "met": False},
        3,
    )


def parsed(*argv: str) -> Options:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return options_from(vars(parser.parse_args(argv)))


def test_options() -> None:
    assert parsed("--only", "limit, engine", "--workers", "1x8,2x4").only == ("engine", "limit")
    assert parsed("--quick").sends < 10_000
    assert parsed("--quick", "--sends", "50000").sends == 50_000
    assert tuple(RUNNERS) == SECTIONS
    assert RUNNERS["limit"] is run_limit


@pytest.mark.parametrize(
    "argv", [["--only", "speed"], ["--only", ""], ["--workers", "two"], ["--workers", "0x8"], ["--sends", "many"]]
)
def test_bad_options_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*argv)
    assert "argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [[], ["--only", "engine,limit"], ["--quick"], ["--workers", "2x8,3x4"], ["--sends", "5", "--seconds", "2.5"]],
)
def test_the_command_of_a_run_is_told(argv: list[str]) -> None:
    assert arguments(parsed(*argv)) == argv


def test_a_list_has_so_many_rows(tmp_path: Path) -> None:
    write_list(tmp_path / "list.csv", 3)
    assert len((tmp_path / "list.csv").read_text().splitlines()) == 4
