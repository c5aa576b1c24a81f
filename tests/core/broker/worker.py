"""What `python -m dramatiq tests.core.broker.worker` runs in the process tests: this project's broker and worker process, without
Django. `RIG_REDIS_URL` says where; what jobs do is to be seen in lists there."""

from __future__ import annotations

import os
import threading

import dramatiq
from dramatiq.threading import raise_thread_exception
from dramatiq.worker import ConsumerThread, WorkerThread
from redis import Redis

from core.broker.broker import RailBroker
from core.broker.processes import WorkerProcess

QUEUE = "rig"

broker = RailBroker(url=os.environ["RIG_REDIS_URL"], middleware=[WorkerProcess()])
dramatiq.set_broker(broker)
busy: set[threading.Thread] = set()
notes = Redis.from_url(os.environ["RIG_REDIS_URL"])


@dramatiq.actor(queue_name=QUEUE)
def slow(number: int) -> None:
    """Begins, waits until it may end, ends."""
    busy.add(threading.current_thread())
    notes.rpush("rig.begun", number)
    while notes.blpop([f"rig.go.{number}"], timeout=1) is None:
        pass
    notes.rpush("rig.ended", number)
    busy.discard(threading.current_thread())


@dramatiq.actor(queue_name=QUEUE)
def kill_thread(kind: str) -> None:
    """End an idle thread of this worker, as an exception that nobody catches would."""
    busy.add(threading.current_thread())
    kinds = {"consumer": ConsumerThread, "worker": WorkerThread}
    victim = next(thread for thread in threading.enumerate() if isinstance(thread, kinds[kind]) and thread not in busy)
    assert victim.ident is not None
    raise_thread_exception(victim.ident, SystemExit)
