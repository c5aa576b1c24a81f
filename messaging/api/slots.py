"""How many large or slow bodies a web process reads at once: they take minutes, and others' login codes need its threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from messaging.domain.errors import Throttled, Unavailable

#: Bodies of one process, and of one tenant in it. Half of the threads that a process of the Procfile has, and half of
#: that half; and the last slot is for a tenant that has none, so that no two of them keep the others from uploading.
AT_ONCE, OF_A_TENANT = 4, 2
_RETRY_AFTER = 5

_lock = threading.Lock()
_reading: Counter[int] = Counter()


@contextmanager
def slot_of(tenant_id: int) -> Iterator[None]:
    """Raises Throttled `too_many_uploads`, Unavailable `uploads_busy`; nobody waits for a slot in a thread."""
    with _lock:
        if _reading[tenant_id] >= OF_A_TENANT:
            raise Throttled(
                "too_many_uploads",
                "Some large or slow requests of yours are being read. Wait for one.",
                retry_after=_RETRY_AFTER,
            )
        if _reading.total() >= AT_ONCE - bool(_reading[tenant_id]):
            raise Unavailable(
                "uploads_busy",
                "Too many large or slow requests are being read here. Try again soon.",
                retry_after=_RETRY_AFTER,
            )
        _reading[tenant_id] += 1
    try:
        yield
    finally:
        with _lock:
            _reading[tenant_id] -= 1
            if not _reading[tenant_id]:
                del _reading[tenant_id]
