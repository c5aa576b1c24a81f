"""What a worker process does beside its jobs: it stops once, gives back what it will not do, and notices a dead thread.

A second SIGTERM kills a worker of dramatiq's with its jobs in hand, and the parent process forwards each that it gets: a
signal to the whole group (systemd's default, honcho) comes twice.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from dramatiq import Broker, Middleware, Worker

from core.broker import RailBroker

log = logging.getLogger(__name__)

#: Seconds after a first signal to stop in which further ones are taken for the same one. After that, another one kills, as
#: dramatiq documents.
ONE_SIGNAL_SECONDS = 5.0
#: Seconds between two looks at the threads.
_LOOK_SECONDS = 1.0

_Handler = Callable[[int, FrameType | None], object]


class WorkerProcess(Middleware):
    """Needs a `RailBroker`."""

    def after_process_boot(self, broker: Broker) -> None:
        installed = signal.getsignal(signal.SIGTERM)
        assert callable(installed), "dramatiq installs its handler before this hook"
        once = _once(installed)
        for number in (signal.SIGTERM, signal.SIGHUP):  # one handler for both in dramatiq, too
            signal.signal(number, once)

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        # As many as there are threads, not dramatiq's twice as many: what waits here nobody else can take, and whoever asks
        # for the depth of the queue does not see it.
        worker.queue_prefetch = worker.worker_threads
        self._watchdog = Watchdog(worker)

    def after_worker_boot(self, broker: Broker, worker: Worker) -> None:
        self._watchdog.start()

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        self._watchdog.stop()
        # Dramatiq lets consumers fetch until the last job is done. Those messages would wait for that, too.
        assert isinstance(broker, RailBroker)
        for queue in broker.get_declared_queues():
            broker.gate(queue).lock()

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        if self._watchdog.bit:
            raise SystemExit(1)  # not 0: nobody asked it to stop, so it should be started again


class Watchdog(threading.Thread):
    """Stops the process, gracefully, if a thread of its worker has died: it would look healthy and do nothing."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.bit = False
        self._worker = worker
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            threads = [*self._worker.consumers.values(), *self._worker.workers]
            dead = [type(thread).__name__ for thread in threads if thread.ident is not None and not thread.is_alive()]
            if dead and not self._stopping.is_set():
                log.error("worker_thread_died", extra={"threads": dead})
                self.bit = True
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def stop(self) -> None:
        self._stopping.set()


def _once(handler: _Handler) -> _Handler:
    first: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
        elif now - first < ONE_SIGNAL_SECONDS:
            return
        handler(number, frame)

    return handle
