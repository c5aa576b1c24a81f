"""How much later than usual a request leaves. The provider counts when it arrives: what comes after a late one has to come
later as well (`Governor.late`). A delay that all have shifts nothing: their distances on the wire are those of their grants."""

from __future__ import annotations

import functools
import threading
from collections import deque

#: Requests whose times from grant to wire say what is usual here: ten seconds' worth at ten a second, so that a machine that is
#: busy for a moment is not taken for a database that is far away.
REQUESTS = 101
#: What is usual before the first one: a batch of a hundred takes as long, with a database next door (docs/decisions/0009).
AT_FIRST = 0.005
#: Seconds above the usual that the refill has room for (a fixed window of one second leaves 20 ms at 0.98 n), and from which on
#: the governor hears of it.
ROOM = 0.010
LATE = 0.015


class Lateness:
    """Of one process towards one provider on one rail. Safe to share between threads."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=REQUESTS)
        self._lock = threading.Lock()

    def of(self, seconds: float) -> float:
        """A request leaves `seconds` after its grant: by how much what comes after it has to be put off."""
        with self._lock:
            # The lower quartile, not the median: where times vary a lot, it is the quick ones that come too near to a slow one.
            usual = sorted(self._seen)[len(self._seen) // 4] if self._seen else AT_FIRST
            self._seen.append(seconds)
        return seconds - usual - ROOM if seconds - usual > LATE else 0.0


@functools.cache
def lateness_of(provider: str, rail: str) -> Lateness:
    return Lateness()
