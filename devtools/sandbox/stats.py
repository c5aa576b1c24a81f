"""Counts of what came in and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from devtools.sandbox.accepted import AcceptedLog

_EXAMPLES = 20  # how many doubled ids and unknown routes are named


class Stats:
    """`received` counts every request at the provider's own routes before any check; `counted` those that passed the
    key and the rate limit, which is what a client should have spent a token on."""

    def __init__(self, started_at: float) -> None:
        self._started_at = started_at
        self.received = 0
        self.counted = 0
        self._replays = 0
        self._most_items = 0
        self._by_status: Counter[str] = Counter()
        self._by_route: Counter[str] = Counter()
        self._unknown_routes: dict[str, None] = {}
        self._seconds: dict[int, list[int]] = {}  # epoch second → [requests counted, e-mails accepted]
        self._too_many: Counter[int] = Counter()  # epoch second → requests answered 429
        self._watchers: list[Callable[[], bool]] = []

    def receive(self, route: str | None, method: str, path: str) -> int:
        """Counts a request; returns its number."""
        self.received += 1
        self._by_route[route or "unknown"] += 1
        if route is None and len(self._unknown_routes) < _EXAMPLES:
            self._unknown_routes[f"{method} {path}"] = None
        return self.received

    def count(self, at: float) -> None:
        self.counted += 1
        self._second(at)[0] += 1

    def accept(self, items: int, at: float) -> None:
        self._most_items = max(self._most_items, items)
        self._second(at)[1] += items

    def replay(self) -> None:
        self._replays += 1

    def answer(self, outcome: str, at: float) -> None:
        self._by_status[outcome] += 1
        if outcome == "429":
            self._too_many[int(at)] += 1
        if self._watchers:
            self._watchers = [watcher for watcher in self._watchers if not watcher()]

    def watch(self, watcher: Callable[[], bool]) -> None:
        """Calls `watcher` after each request until it returns True."""
        self._watchers.append(watcher)

    def report(self, log: AcceptedLog) -> dict[str, Any]:
        return {
            "started_at": self._started_at,
            "requests_received": self.received,
            "requests_counted": self.counted,
            "by_status": dict(sorted(self._by_status.items())),
            "by_route": dict(sorted(self._by_route.items())),
            "unknown_routes": list(self._unknown_routes),
            "batches_accepted": log.batches,
            "replays": self._replays,
            "emails_accepted": log.total,
            "send_ids": log.distinct,
            "doubles": sum(log.again.values()),
            "doubled_send_ids": list(log.again)[:_EXAMPLES],
            "untagged": log.untagged,
            "items_per_batch_mean": round(log.total / log.batches, 3) if log.batches else 0.0,
            "items_per_batch_max": self._most_items,
            "per_second": [[second, *counts] for second, counts in sorted(self._seconds.items())],
            "too_many_per_second": [list(pair) for pair in sorted(self._too_many.items())],
        }

    def _second(self, at: float) -> list[int]:
        return self._seconds.setdefault(int(at), [0, 0])
