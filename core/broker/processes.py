"""What a worker process does beside its jobs: it looks whether it may start, stops once, gives back what it will not do, and
notices a dead thread.

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

from django.core.exceptions import ImproperlyConfigured
from dramatiq import Broker, Middleware, Worker

from core.broker.broker import RailBroker
from core.db.cursor import require_session
from core.telemetry.redis_client import refuse_cluster

log = logging.getLogger(__name__)

#: Seconds after a first signal to stop in which further ones are taken for the same one. After that, another one kills, as
#: dramatiq documents.
ONE_SIGNAL_SECONDS = 5.0
#: Seconds between two looks at the threads.
_LOOK_SECONDS = 1.0

_Handler = Callable[[int, FrameType | None], object]


class WorkerProcess(Middleware):
    """Needs a `RailBroker`."""

    def __init__(self) -> None:
        self._watchdog: Watchdog | None = None

    def after_process_boot(self, broker: Broker) -> None:
        try:
            require_session()
        except ImproperlyConfigured as error:
            # Dramatiq would log any other exception, and go on.
            log.critical("database_session_refused", extra={"why": str(error)})
            raise SystemExit(1) from None
        installed = signal.getsignal(signal.SIGTERM)
        assert callable(installed), "dramatiq installs its handler before this hook"
        handle = _once(self._stop, installed)
        for number in (signal.SIGTERM, signal.SIGHUP):  # one handler for both in dramatiq, too
            signal.signal(number, handle)

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        # As many as there are threads, not dramatiq's twice as many: what waits here nobody else can take, and whoever asks
        # for the depth of the queue does not see it.
        worker.queue_prefetch = worker.worker_threads
        assert isinstance(broker, RailBroker)
        try:
            refuse_cluster(broker.producer)
        except ImproperlyConfigured as error:
            raise SystemExit(str(error)) from None  # of anything less dramatiq only writes a line
        self._watchdog = Watchdog(broker, worker)

    def after_worker_boot(self, broker: Broker, worker: Worker) -> None:
        assert self._watchdog is not None
        self._watchdog.start()

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        assert self._watchdog is not None
        self._watchdog.stop()
        self._watchdog.join()

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        assert self._watchdog is not None
        if self._watchdog.thread_died:
            raise SystemExit(1)  # not 0: nobody asked it to stop, so it should be started again

    def _stop(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()


class Watchdog(threading.Thread):
    """Looks after a worker until its process is to stop, then locks its gates: dramatiq lets consumers fetch until the last job
    has ended, and what they fetch would wait for that, too.

    Stops the process, gracefully, if a thread of the worker has died: it would look healthy and do nothing.
    """

    def __init__(self, broker: RailBroker, worker: Worker) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.thread_died = False
        self._broker = broker
        self._worker = worker
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            threads = [*self._worker.consumers.values(), *self._worker.workers]
            dead = [type(thread).__name__ for thread in threads if thread.ident is not None and not thread.is_alive()]
            if dead and not self._stopping.is_set():
                log.error("worker_thread_died", extra={"threads": dead})
                self.thread_died = True
                os.kill(os.getpid(), signal.SIGTERM)
                break
        for queue in self._broker.get_declared_queues():
            self._broker.gate(queue).lock()

    def stop(self) -> None:
        """Safe in a signal handler: the thread that it interrupts never waits for this event."""
        self._stopping.set()


def _once(first: Callable[[], None], handler: _Handler) -> _Handler:
    """A handler that calls `first` and `handler` at the first signal, and `handler` again at one that comes much later."""
    heard: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        now = time.monotonic()
        if heard is None:
            heard = now
            first()
        elif now - heard < ONE_SIGNAL_SECONDS:
            return
        handler(number, frame)

    return handle
