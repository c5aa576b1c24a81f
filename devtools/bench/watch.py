"""What a batch costs, step by step: real tickets served in this process, with a stop-watch around each step.

Called by `devtools.bench.inside`. The stop-watch wraps the functions by name; a step that is renamed is a failure here and
not a figure that silently becomes zero.
"""

from __future__ import annotations

import importlib
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from core.governor.client import Governor
from messaging.dispatch import run_ticket
from messaging.domain.rails import Channel, Rail
from messaging.providers.registry import adapter_for

#: Step → where its function is looked up by those who call it. In the order in which they run.
STEPS: dict[str, tuple[str, str]] = {
    "replay": ("messaging.dispatch.scheduler", "next_replay"),
    "candidates": ("messaging.dispatch.scheduler", "candidates"),
    "governor": ("core.governor.client.Governor", "acquire"),
    "locks": ("messaging.ledger.claim", "lock_lanes"),
    "claim": ("messaging.ledger.claim", "take"),
    "open": ("messaging.ledger.claim", "open_batch"),
    "whole claim": ("messaging.dispatch.turn", "form_batch"),
    "ticket": ("messaging.dispatch.turn", "send_ticket"),
    "render": ("messaging.dispatch.preparing", "_render"),
    "encode": ("messaging.dispatch.preparing", "_encode"),
    "ready": ("messaging.ledger.preparing", "make_ready"),
    "request": ("messaging.dispatch.turn", "_call"),
    "settle": ("core.governor.client.Governor", "settle"),
    "record": ("messaging.dispatch.turn", "record_answer"),
}
_WARM = 20
#: Tickets that may come to nothing, and seconds until the next one then.
_IN_VAIN, _PAUSE = 1_000, 0.02


class _Watch:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - began

        return timed


def steps(batches: int) -> dict[str, Any]:
    """Serve tickets of the marketing rail until so many batches were accepted in full.

    "seconds": of each step of each batch, and of all of it ("batch"). "in_vain": tickets that came to nothing, because the
    clock held the blast's row at that moment.
    """
    taken: dict[str, list[float]] = defaultdict(list)
    watch, done, in_vain = _Watch(), 0, 0
    assert adapter_for(Channel.EMAIL) is not None
    with ExitStack() as stack:
        for name, (where, attribute) in STEPS.items():
            home = Governor if where == "core.governor.client.Governor" else importlib.import_module(where)
            timed = watch.around(name, getattr(home, attribute))
            stack.enter_context(mock.patch.object(home, attribute, timed))
        while done < _WARM + batches:
            watch.seconds.clear()
            began = time.perf_counter()
            recorded = run_ticket(Channel.EMAIL, Rail.MARKETING)
            took = time.perf_counter() - began
            if recorded is None and in_vain < _IN_VAIN:
                in_vain += 1
                time.sleep(_PAUSE)
                continue
            if recorded is None or len(recorded.accepted) != 100:
                raise AssertionError(f"batch {done} was not accepted in full: {recorded}")
            done += 1
            if done > _WARM:
                for name in STEPS:
                    taken[name].append(watch.seconds[name])
                taken["batch"].append(took)
    return {"seconds": dict(taken), "in_vain": in_vain}
