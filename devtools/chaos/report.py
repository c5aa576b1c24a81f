"""The timeline with the time to recover, the counts, the verdict; and the same as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devtools.chaos.driver import Happened
from devtools.chaos.judge import SHARE, WINDOW, Evidence, LedgerSend, recovery
from devtools.stack import RAILS

#: Ambiguous sends that are printed; all of them are in the JSON file.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One fault of the timeline. Seconds; `at` from the begin of the load."""

    at: float
    fault: str
    lasted: float
    note: str
    together: tuple[str, ...]
    recovered: Mapping[str, float | None]


def flow_of(evidence: Evidence) -> dict[str, list[float]]:
    """Rail → when each of its sends was accepted, ascending."""
    rails = {send.id: send.rail for send in evidence.sends}
    flow: dict[str, list[float]] = defaultdict(list, {rail: [] for rail in RAILS})
    for one in evidence.accepted:
        if one.send_id in rails:
            flow[rails[one.send_id]].append(one.at)
    return {rail: sorted(moments) for rail, moments in flow.items()}


def timeline(happened: Sequence[Happened], evidence: Evidence, since: float, seconds: float) -> list[Row]:
    """`seconds` of load from `since` on."""
    flow = flow_of(evidence)
    submitted = Counter(send.rail for send in evidence.sends)
    asked = {rail: submitted[rail] / seconds for rail in flow}
    rows = []
    for fault in happened:
        found = recovery(fault, happened, flow, asked, since)
        rows.append(
            Row(
                fault.begin - since, fault.kind.name, fault.end - fault.begin, fault.note, found.together, found.seconds
            )
        )
    return rows


def lines(rows: Sequence[Row]) -> list[str]:
    """The timeline as text."""
    head = f"{'at':>7} {'lasted':>7}  {'fault':<22} " + " ".join(f"{rail:>13}" for rail in RAILS)
    about = (
        f"Time to recover: from the end of a fault until a rail's accepted sends reach {SHARE:.0%} of the rate before it"
        f" (or of the rate of submits, if that is less), over {WINDOW:g} s. * from the end of another fault that went on."
    )
    told = [about, head]
    for row in rows:
        seconds = " ".join(f"{_seconds(row.recovered[rail]):>13}" for rail in RAILS)
        mark = "*" if row.together else " "
        told.append(f"{row.at:6.1f}s {row.lasted:6.1f}s  {row.fault:<22} {seconds}{mark}  {row.note}")
    return told


def longest(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Fault → rail → the longest time to recover."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        for rail, seconds in row.recovered.items():
            if seconds is not None:
                found[row.fault][rail] = max(seconds, found[row.fault].get(rail, 0.0))
    return dict(found)


def ambiguous_lines(unresolved: Sequence[LedgerSend]) -> list[str]:
    told = [f"  {send.id}  batch {send.batch}  {send.error_code}" for send in unresolved[:_SHOWN]]
    if len(unresolved) > _SHOWN:
        told.append(f"  … and {len(unresolved) - _SHOWN:,} more (all of them with --json FILE)")
    return told


def write_json(path: Path, about: Mapping[str, Any], rows: Sequence[Row], more: Mapping[str, Any]) -> None:
    found = {"run": about, **more, "timeline": [dataclasses.asdict(row) for row in rows], "longest": longest(rows)}
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
