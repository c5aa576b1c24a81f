"""One leader at a time looks for work and waits for tokens on behalf of a (provider, channel, rail) in this process.

No wake-up is lost: a thread that comes while there is a leader raises its flag under the mutex before it acknowledges its
ticket, and a leader learns in the same step in which it releases the lead whether a flag came up since it last looked. One
thread waits in line, so that the next search begins when the last one ends, without a ticket's way through the broker.
"""

from __future__ import annotations

import threading
from collections import defaultdict

#: Seconds for which a thread waits in line at most: longer than a leader takes for a batch, shorter than it waits for tokens.
LINE_SECONDS = 0.5


class Leader:
    """The lead of one line of work in this process: held by one thread at a time."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._taken = False
        self._flag = False
        self._in_line = False
        self._handed_over = False

    def acquire(self) -> bool:
        """Become the leader, perhaps after a moment in line. False: there is one, and it looks again."""
        with self._condition:
            self._flag = self._taken
            if not self._taken:
                self._taken = True
                return True
            self._condition.notify_all()
            if self._in_line:
                return False
            self._in_line = True
            self._condition.wait_for(lambda: self._handed_over, timeout=LINE_SECONDS)
            leads, self._in_line, self._handed_over = self._handed_over, False, False
            self._flag = self._flag and not leads
            return leads

    def about_to_search(self) -> None:
        """What is flagged from now on, the leader may have missed."""
        with self._condition:
            self._flag = False

    def flagged(self) -> bool:
        """Somebody came since `about_to_search`."""
        with self._condition:
            return self._flag

    def release(self) -> bool:
        """Hand the lead to the thread in line, if there is one. True: a flag had come up, so somebody must look again."""
        with self._condition:
            if self._in_line and not self._handed_over:
                self._handed_over = True  # it will look, whoever raised the flag
                self._condition.notify_all()
                return False
            flag, self._flag, self._taken = self._flag, False, False
            return flag

    def wait(self, seconds: float, *, until_flag: bool) -> None:
        """Sleep as leader; with `until_flag`, no longer than until somebody comes with a ticket."""
        with self._condition:
            self._condition.wait_for(lambda: until_flag and self._flag, timeout=seconds)


_leaders: defaultdict[tuple[str, str, str], Leader] = defaultdict(Leader)
_lock = threading.Lock()


def leader_of(provider: str, channel: str, rail: str) -> Leader:
    with _lock:
        return _leaders[provider, channel, rail]
