"""Clients that never give up: each order is submitted, and again under the same idempotency key, until it is answered."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import requests

from devtools.bench.remote import Remote
from devtools.chaos.clients import Again, ApplicationClient, Client, HttpClient, Refused
from devtools.chaos.orders import Mischief, Order, What

_CODE_THREADS, _BLAST_THREADS = 6, 4
_AGAIN_SECONDS = 0.3


@dataclass(slots=True, eq=False)
class Submitted:
    """`ids`: what it was answered; several answers must be one and the same."""

    order: Order
    ids: set[tuple[str, ...]] = field(default_factory=set)
    tries: int = 0
    refused: str = ""
    open: int = 1  # clients that are at it or will be

    @property
    def answered(self) -> bool:
        return bool(self.ids)


class Load:
    """From `start` on its own. All figures of an order are final once `left` is 0."""

    def __init__(
        self, orders: Sequence[Order], url: str, keys: Mapping[str, str], applications: Sequence[Remote]
    ) -> None:
        self.submitted = [Submitted(order, open=2 if order.mischief is Mischief.TWIN else 1) for order in orders]
        self.again: Counter[str] = Counter()  # why a submit was repeated
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._queues: dict[What, queue.Queue[Submitted | None]] = {what: queue.Queue() for what in What}
        self._queues[What.UPLOAD] = self._queues[What.BLAST]
        clients: list[tuple[What, Client]] = [
            *((What.CODE, HttpClient(url, keys)) for _ in range(_CODE_THREADS)),
            *((What.BLAST, HttpClient(url, keys)) for _ in range(_BLAST_THREADS)),
            *((What.PRODUCT, ApplicationClient(remote)) for remote in applications),
        ]
        self._served = [what for what, _ in clients]
        self._threads = [threading.Thread(target=self._schedule, daemon=True)]
        self._threads += [threading.Thread(target=self._serve, args=given, daemon=True) for given in clients]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No more tries; returns when those in hand are over."""
        if not self._stop.is_set():
            self._stop.set()
            for what in self._served:
                self._queues[what].put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    @property
    def left(self) -> int:
        """Clients that are not done."""
        with self._lock:
            return sum(one.open for one in self.submitted)

    def _schedule(self) -> None:
        began = time.monotonic()
        for one in self.submitted:
            if self._stop.wait(max(0.0, began + one.order.at - time.monotonic())):
                return
            for _ in range(one.open):
                self._queues[one.order.what].put(one)

    def _serve(self, what: What, client: Client) -> None:
        while (one := self._queues[what].get()) is not None:
            self._insist(one, client)
            with self._lock:
                one.open -= 1

    def _insist(self, one: Submitted, client: Client) -> None:
        wanted = 2 if one.order.mischief is Mischief.REPEAT else 1
        hang_up = one.order.mischief is Mischief.HANG_UP
        while wanted and not self._stop.is_set():
            pause = _AGAIN_SECONDS
            with self._lock:
                one.tries += 1
            try:
                ids = client.submit(one.order, hang_up=hang_up)
                with self._lock:
                    one.ids.add(ids)
                wanted -= 1
                continue
            except Refused as error:
                with self._lock:
                    one.refused = error.why
                return
            except Again as error:
                why, pause = error.why, error.seconds or _AGAIN_SECONDS
            except requests.RequestException as error:
                why = type(error).__name__
            hang_up = False
            with self._lock:
                self.again[why] += 1
            self._stop.wait(pause)
