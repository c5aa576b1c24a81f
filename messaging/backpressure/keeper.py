"""The keeper of one gate: looks, decides, opens or closes, tells. One a marketing queue and process; used by one thread."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import redis
from django.db import Error, close_old_connections

from core.broker.gate import Gate
from core.telemetry.redis_client import quick_client
from messaging.backpressure.measure import measure
from messaging.backpressure.policy import DEEP, IDLE, WORKING, Policy, blind_yields, yields
from messaging.backpressure.state import TTL, ProcessYield, publish, withdraw
from messaging.providers.base import Adapter
from messaging.telemetry.counted import DEPTH_UNREADABLE

log = logging.getLogger(__name__)

#: Seconds after which an unchanged state is told again: rarely, since it costs Redis five commands (script, its calls, a ping).
_RENEW = TTL / 2


class Keeper:
    """Closes its gate at once: until the first look nobody knows whether there is room for marketing."""

    def __init__(self, adapter: Adapter, gate: Gate, policy: Policy, process: str) -> None:
        self.channel = adapter.channel
        self._adapter, self._gate, self._policy = adapter, gate, policy
        self._readable_at = time.monotonic()
        self._blind = False
        self._told: ProcessYield | None = None
        self._told_at = 0.0
        self.state = ProcessYield(process, True, time.time(), "starting", 0, 0, 0)
        gate.close()

    def step(self, *, working: bool) -> float:
        """Look, flip the gate, tell. Returns the seconds until the next look; `working`: marketing has jobs just now.

        Whatever a look raises means that the depth is unreadable: the gate stays closed for a minute, then it trickles.
        """
        try:
            found = measure(self._adapter, quick_client(), self._policy)
        except (Error, redis.RedisError) as error:
            self._cannot_see(type(error).__name__)
        except Exception:
            log.exception("depth_look_failed")  # a bug: without this the gate would stay as it is, for ever
            self._cannot_see("bug")
        else:
            if self._blind:
                log.info("depth_readable", extra={"channel": self.channel})
            self._blind, self._readable_at = False, time.monotonic()
            marks = found.marks
            yielding = marks is not None and yields(self.state.yielding, found.depth, marks)
            self._set(
                yielding,
                "depth" if yielding else found.why,
                found.depth,
                (marks.high, marks.low) if marks else (0, 0),
            )
        self._publish()
        if self.state.yielding or (working and self.state.depth):
            return DEEP
        return WORKING if working else IDLE

    def end(self) -> None:
        """The process ends: what it told is no longer so."""
        try:
            withdraw(quick_client(), self.channel, self.state.process)
        except redis.RedisError as error:  # it runs out by itself
            log.warning("yield_untold", extra={"channel": self.channel, "error": type(error).__name__})

    def _cannot_see(self, why: str) -> None:
        close_old_connections()
        blind_for = time.monotonic() - self._readable_at
        if not self._blind:
            self._blind = True
            log.error("depth_unreadable", extra={"channel": self.channel, "error": why})
            DEPTH_UNREADABLE.add(self.channel)
        self._set(blind_yields(blind_for), "unreadable", 0, (0, 0))

    def _set(self, yielding: bool, why: str, depth: int, marks: tuple[int, int]) -> None:
        was = self.state
        changed = yielding is not was.yielding or was.why == "starting"
        self.state = replace(
            was,
            yielding=yielding,
            since=time.time() if changed else was.since,
            why=why,
            depth=depth,
            high=marks[0],
            low=marks[1],
        )
        (self._gate.close if yielding else self._gate.open)()
        if yielding is not was.yielding and was.why != "starting":
            log.info(
                "marketing_yields" if yielding else "marketing_resumes",
                extra={"channel": self.channel, "why": why, "depth": depth, "high": marks[0], "low": marks[1]},
            )

    def _publish(self) -> None:
        told, now = self._told, time.monotonic()
        same = told is not None and (told.yielding, told.why) == (self.state.yielding, self.state.why)
        if same and now < self._told_at + _RENEW:
            return
        try:
            publish(quick_client(), self.channel, self.state)
        except redis.RedisError as error:
            log.warning("yield_untold", extra={"channel": self.channel, "error": type(error).__name__})
        self._told, self._told_at = self.state, now
