"""One beat: all steps in their order. A step that fails is told of and does not keep the others from running."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import redis
from django.db import Error, close_old_connections

from messaging.clock.tickets import re_ticket
from messaging.ledger import lost_claims, sweeps
from messaging.ledger.expired_keys import prune_keys
from messaging.ledger.folding import fold_deltas, prune_paces
from messaging.ledger.lane_marks import judge_lanes, mark_missing, prune_lanes
from messaging.telemetry import heartbeat

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
#: Beats between two runs of the steps that only tidy up, or tell.
_TIDY_EVERY = 10

#: The order matters: what was lost is bound before it can end in another way, what wakes is seen by the hints, what the hints
#: say is seen by the re-ticketing.
_STEPS: dict[str, Callable[[], int]] = {
    "lost_claims": lost_claims.scan,
    "release_unprepared": sweeps.release_unprepared,
    "wake": sweeps.wake,
    "wake_held": sweeps.wake_held,
    "expire": sweeps.expire,
    "clear_cancelled": sweeps.clear_cancelled,
    "judge_lanes": judge_lanes,
    "refresh_hints": sweeps.refresh_hints,
    "finish_blasts": sweeps.finish_blasts,
    "re_ticket": re_ticket,
    "fold_deltas": fold_deltas,
}
_TIDY: dict[str, Callable[[], int]] = {
    "newest_claims": lost_claims.scan_newest,
    "prune": sweeps.prune,
    "prune_holds": sweeps.prune_holds,
    "prune_keys": prune_keys,
    "prune_paces": prune_paces,
    "prune_lanes": prune_lanes,
    "mark_missing": mark_missing,
    "expire_drafts": sweeps.expire_drafts,
    "tell": heartbeat.tell,
}


@dataclass(frozen=True, slots=True)
class Beat:
    """What a beat did: rows (or tickets) by step, the steps that failed, and how long it took in seconds."""

    moved: dict[str, int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    seconds: float = 0.0


def run_once(number: int = 0) -> Beat:
    """One beat. Never raises for a database or Redis that is away: the next beat tries again."""
    started = time.monotonic()
    moved: dict[str, int] = {}
    failed: list[str] = []
    for name, step in (_STEPS | _TIDY if number % _TIDY_EVERY == 0 else _STEPS).items():
        try:
            moved[name] = step()
        except (Error, redis.RedisError) as error:
            failed.append(name)
            log.error("clock_step_failed", extra={"step": name, "error": type(error).__name__})
            close_old_connections()
    return Beat(moved, tuple(failed), time.monotonic() - started)
