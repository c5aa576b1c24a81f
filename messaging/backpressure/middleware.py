"""The middleware that makes marketing workers yield: a thread in each process that consumes a marketing queue."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import dramatiq
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections
from dramatiq.middleware import Middleware, MiddlewareError
from dramatiq.worker import Worker

from core.broker.broker import RailBroker
from messaging.backpressure.policy import IDLE
from messaging.backpressure.settings import policy_of
from messaging.domain.rails import Rail, queue_name
from messaging.providers.registry import adapters

if TYPE_CHECKING:
    from messaging.backpressure.keeper import Keeper

log = logging.getLogger(__name__)

#: Seconds that marketing counts as working after its last job began.
_WORKING_SECONDS = 2.0
#: Seconds that the end of a process waits for a look that is under way.
_STOP_SECONDS = 5.0


class RailPriorityMiddleware(Middleware):
    """Gates every marketing queue that this process consumes. In a process without one it does nothing.

    The gates are closed before the first fetch, and opened by the first look. Raises MiddlewareError (the worker does not
    start) where the policy is misconfigured: a worker that is started without `manage.py` has run no system check.
    """

    def __init__(self) -> None:
        self._thread: _Watch | None = None
        self._queues: frozenset[str] = frozenset()

    def before_worker_boot(self, broker: dramatiq.Broker, worker: Worker) -> None:
        from messaging.backpressure.keeper import Keeper  # models: Django makes the broker before it loads them

        assert isinstance(broker, RailBroker)
        declared = broker.get_declared_queues()
        asked = set(worker.consumer_whitelist or declared)
        _warn(asked, declared)
        mine = {c: a for c, a in adapters().items() if queue_name(c, Rail.MARKETING) in asked & declared}
        process = f"{socket.gethostname()}:{os.getpid()}"
        try:
            keepers = [
                Keeper(adapter, broker.gate(queue_name(channel, Rail.MARKETING)), policy_of(channel), process)
                for channel, adapter in mine.items()
            ]
        except ImproperlyConfigured as error:
            raise MiddlewareError(str(error)) from error
        if keepers:
            self._queues = frozenset(queue_name(channel, Rail.MARKETING) for channel in mine)
            self._thread = _Watch(keepers)
            self._thread.start()

    def before_process_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        if self._thread is not None and message.queue_name in self._queues:
            self._thread.working()

    def before_worker_shutdown(self, broker: dramatiq.Broker, worker: Worker) -> None:
        if self._thread is not None:
            self._thread.stop()


def _warn(asked: set[str], declared: set[str]) -> None:
    """What a worker was started with that cannot work, or not as well as it could. Once, at its start."""
    if unknown := sorted(asked - declared):
        log.error("worker_unknown_queues", extra={"queues": unknown, "known": sorted(declared)})
    rails = {rail for channel in adapters() for rail in Rail if queue_name(channel, rail) in asked}
    if len(rails) > 1:
        # It works; but jobs of a blast that run already keep their threads while a login code waits for one.
        log.warning("worker_serves_both_rails", extra={"queues": sorted(asked)})


class _Watch(threading.Thread):
    def __init__(self, keepers: Sequence[Keeper]) -> None:
        super().__init__(name="rail-priority", daemon=True)
        self._keepers = keepers
        self._changed = threading.Condition()
        self._ended = False
        self._idle = False
        self._worked_at = 0.0

    def working(self) -> None:
        """Marketing begins a job: if the thread has thought it idle, it looks at once."""
        self._worked_at = time.monotonic()
        if self._idle:
            with self._changed:
                self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self.join(_STOP_SECONDS)

    def run(self) -> None:
        try:
            while not self._ended:
                self._rest(min(keeper.step(working=self._is_working()) for keeper in self._keepers))
            for keeper in self._keepers:
                keeper.end()
        finally:
            connections.close_all()

    def _is_working(self) -> bool:
        return time.monotonic() < self._worked_at + _WORKING_SECONDS

    def _rest(self, seconds: float) -> None:
        close_old_connections()
        with self._changed:
            self._idle = seconds >= IDLE
            self._changed.wait_for(lambda: self._ended or (self._idle and self._is_working()), timeout=seconds)
            self._idle = False
