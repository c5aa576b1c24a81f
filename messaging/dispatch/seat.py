"""One leader at a time looks for work and waits for tokens on behalf of a (provider, channel, rail) in this process.

No wake-up is lost: a thread that comes while the seat is taken raises its flag under the mutex before it acknowledges its
ticket, and a leader learns in the same step in which it leaves the seat whether a flag came up since it last looked.
"""

from __future__ import annotations

import threading
from collections import defaultdict


class Seat:
    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._taken = False
        self._flag = False

    def sit(self) -> bool:
        """Become the leader. False: there is one, and it will look again."""
        with self._condition:
            if self._taken:
                self._flag = True
                self._condition.notify()
                return False
            self._taken = True
            self._flag = False
            return True

    def look(self) -> None:
        """The leader is about to look for work: what is flagged from now on, it may have missed."""
        with self._condition:
            self._flag = False

    def flagged(self) -> bool:
        """Somebody came since `look`."""
        with self._condition:
            return self._flag

    def rise(self) -> bool:
        """Leave the seat. True: a flag had come up, so somebody must look again."""
        with self._condition:
            flag, self._flag, self._taken = self._flag, False, False
            return flag

    def wait(self, seconds: float, *, until_flag: bool) -> None:
        """Sleep as leader; with `until_flag`, no longer than until somebody comes with a ticket."""
        with self._condition:
            self._condition.wait_for(lambda: until_flag and self._flag, timeout=seconds)


_seats: defaultdict[tuple[str, str, str], Seat] = defaultdict(Seat)
_lock = threading.Lock()


def seat_of(provider: str, channel: str, rail: str) -> Seat:
    with _lock:
        return _seats[provider, channel, rail]
