"""Login codes, sent as two tenants' applications would: HTTP, keep-alive, each tenant with its own key.

Open loop: a code is due when the schedule says so, however slow the answers are. Two tenants at two codes a second leave
this process nearly idle, so that it does not disturb what it measures.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import requests

from devtools.demo.tenants import sender

#: Requests in flight at most. At 4 codes a second, one thread would do while answers take less than 250 ms.
_THREADS = 4
_TIMEOUT_SECONDS = 10.0
_HTML = "<p>Your code is <strong>{{ code }}</strong>.</p><p>It is valid for ten minutes. Nobody of us will ask you for it.</p>"


@dataclass(frozen=True, slots=True)
class Posted:
    """One POST. `seconds`: from the moment it was due to the answer. `send_id` is None unless the answer was 202."""

    tenant: str
    seconds: float
    answer: str
    send_id: str | None


def moments(per_second: float, tenants: int, seed: int) -> Iterator[tuple[float, int]]:
    """(seconds from the start, number of the tenant), for ever, in order: each tenant once in each slot of
    1 ÷ `per_second`, at a random moment of it. An even grid would never let two codes arrive together."""
    randoms = [random.Random(seed + tenant) for tenant in range(tenants)]
    slot = 1 / per_second

    def one(tenant: int) -> Iterator[tuple[float, int]]:
        number = 0
        while True:
            yield (number + randoms[tenant].random()) * slot, tenant
            number += 1

    return heapq.merge(*(one(tenant) for tenant in range(tenants)))


class OtpLoad:
    """Sends from `start` to `stop`. `posted` grows meanwhile; the figures of a moment are a snapshot of it."""

    def __init__(self, url: str, keys: Mapping[str, str], *, per_second: float = 2.0, seed: int = 1) -> None:
        self._url = f"{url}/v1/messaging/sends"
        self._keys = dict(keys)
        self._moments = moments(per_second, len(keys), seed)
        self._codes = random.Random(seed)
        self._local = threading.local()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="otp")
        self._scheduler = threading.Thread(target=self._run, name="otp-schedule", daemon=True)
        self._lock = threading.Lock()
        self._posted: list[Posted] = []

    def start(self) -> None:
        self._scheduler.start()

    def stop(self) -> None:
        """No more codes; returns when those in flight are answered."""
        self._stop.set()
        if self._scheduler.ident is not None:
            self._scheduler.join()
        self._pool.shutdown(cancel_futures=False)

    def posted(self) -> list[Posted]:
        with self._lock:
            return list(self._posted)

    def _run(self) -> None:
        started = time.monotonic()
        slugs = list(self._keys)
        for after, tenant in self._moments:
            if self._stop.wait(max(0.0, started + after - time.monotonic())):
                return
            code = f"{self._codes.randrange(1_000_000):06}"
            self._pool.submit(self._post, slugs[tenant], code, started + after)

    def _post(self, tenant: str, code: str, due: float) -> None:
        send_id: str | None = None
        try:
            got = self._session().post(
                self._url,
                json={
                    "category": "transactional",
                    "to": f"user-{code}@inbox.example",
                    "from": sender(tenant),
                    "subject": "{{ code }} is your login code",
                    "html": _HTML,
                    "variables": {"code": code},
                },
                headers={"Authorization": f"Bearer {self._keys[tenant]}", "Idempotency-Key": str(uuid.uuid4())},
                timeout=_TIMEOUT_SECONDS,
            )
            answer = str(got.status_code)
            if got.status_code == 202:
                send_id = got.json()["id"]
        except (requests.RequestException, ValueError, KeyError) as error:
            answer = type(error).__name__  # counted as a refusal, and so a failure of the run
        with self._lock:
            self._posted.append(Posted(tenant, time.monotonic() - due, answer, send_id))

    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
        session: requests.Session = self._local.session
        return session


def refusals(posted: list[Posted]) -> dict[str, int]:
    """What was answered in place of 202, and how often."""
    return dict(Counter(f"HTTP {p.answer}" if p.answer.isdigit() else p.answer for p in posted if p.send_id is None))
