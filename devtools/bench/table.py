"""How the figures are shown: a table on a terminal, plain lines elsewhere, a table for a page, JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from devtools.bench.goals import Figure, Goal


def number(value: float) -> str:
    """With as many digits as mean something."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.4f}"


def _with_unit(value: float, unit: str) -> str:
    return f"{number(value)} {unit}".rstrip()


def goal_text(goal: Goal | None, unit: str) -> str:
    return "" if goal is None else f"{'≤' if goal.most else '≥'} {_with_unit(goal.value, unit)}"


def verdict(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    if figure.goal.met(figure.value):
        return "met"
    return f"missed by {figure.goal.miss(figure.value):.1%}" if figure.goal.value else "missed"


def show(figure: Figure, console: Console) -> None:
    """One line, as soon as the figure is there."""
    said = " ".join(part for part in (goal_text(figure.goal, figure.unit), verdict(figure)) if part)
    console.print(
        f"  {figure.name}: {_with_unit(figure.value, figure.unit)}" + (f"  ({said})" if said else ""),
        highlight=False,
        markup=False,
        soft_wrap=not console.is_terminal,
    )


def show_all(figures: Sequence[Figure], console: Console) -> None:
    if not console.is_terminal:
        for f in figures:
            measured, goal = _with_unit(f.value, f.unit), goal_text(f.goal, f.unit)
            line = f"{f.section:<13} {f.name:<48} {measured:>20} {goal:>22} {verdict(f):<16} {f.ran}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    table = Table(show_lines=False)
    for name in ("section", "figure"):
        table.add_column(name, overflow="fold")
    for name in ("measured", "goal"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    table.add_column("what ran", overflow="fold")
    for figure in figures:
        table.add_row(
            figure.section,
            figure.name,
            _with_unit(figure.value, figure.unit),
            goal_text(figure.goal, figure.unit),
            verdict(figure),
            figure.ran,
        )
    console.print(table)


def markdown(figures: Sequence[Figure], about: dict[str, Any]) -> str:
    """The table of docs/performance.md, with machine, date and command above it."""
    lines = [
        *(f"{name}: {value}  " for name, value in about.items()),
        "",
        "| | figure | goal | measured | | what ran |",
        "|---|---|--:|--:|---|---|",
    ]
    lines += [
        f"| {f.section} | {f.name} | {goal_text(f.goal, f.unit)} | {_with_unit(f.value, f.unit)} | {verdict(f)} | {f.ran} |"
        for f in figures
    ]
    return "\n".join(lines)


def write_json(path: Path, figures: Sequence[Figure], about: dict[str, Any]) -> None:
    lines = [{"run": about}, *(figure.as_json() for figure in figures)]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
