"""The one thread that does everything to the system: begins faults when they are due, goes on with them, and starts again
what died by itself, as a supervisor of processes would."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from devtools.chaos.faults import ACTS, Act, Scene
from devtools.chaos.schedule import Kind, Planned

_NAP_SECONDS = 0.05


@dataclass(slots=True)
class Happened:
    """A fault as it was: moments since the epoch, `end` infinite until it has ended."""

    kind: Kind
    begin: float
    end: float = float("inf")
    note: str = ""


class Driver:
    """`step` while there is something to do. `planned`: in the order of time. `deaths`: processes that ended by themselves."""

    def __init__(self, scene: Scene, planned: Sequence[Planned], tell: Callable[[str], None]) -> None:
        self.happened: list[Happened] = []
        self.deaths: Counter[str] = Counter()
        self._scene = scene
        self._tell = tell
        self._number = itertools.count()
        self._began = time.monotonic()
        self._waiting = deque(planned)
        self._going: list[tuple[float, int, Happened, Act]] = []

    def active(self) -> list[str]:
        return [one.kind.name for one in self.happened if one.end == float("inf")]

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._going)

    def step(self) -> None:
        """What is due, and a nap."""
        now = time.monotonic() - self._began
        while self._waiting and self._waiting[0].at <= now:
            planned = self._waiting.popleft()
            happened = Happened(planned.kind, time.time())
            self.happened.append(happened)
            self._tell(f"{now:6.1f} s  {planned.kind.name}: {planned.kind.about}")
            self._go_on(happened, ACTS[planned.kind.name](self._scene, planned.seconds))
        while self._going and self._going[0][0] <= time.monotonic():
            _, _, happened, act = heapq.heappop(self._going)
            self._go_on(happened, act)
        self._start_again()
        time.sleep(_NAP_SECONDS)

    def close(self) -> None:
        """Faults that go on end here: what they hold (a frozen worker) is let go."""
        for _, _, happened, act in self._going:
            act.close()
            happened.end, happened.note = time.time(), "did not end by itself"
        self._going.clear()

    def _go_on(self, happened: Happened, act: Act) -> None:
        try:
            pause = next(act)
        except StopIteration as ended:
            happened.end, happened.note = time.time(), ended.value
            lasted = happened.end - happened.begin
            note = f" ({happened.note})" if happened.note else ""
            self._tell(
                f"{time.monotonic() - self._began:6.1f} s  … {happened.kind.name} ends after {lasted:.1f} s{note}"
            )
        else:
            heapq.heappush(self._going, (time.monotonic() + pause, next(self._number), happened, act))

    def _start_again(self) -> None:
        for process in self._scene.processes():
            if process not in self._scene.held and not process.running:
                self.deaths[process.name] += 1
                self._tell(
                    f"{time.monotonic() - self._began:6.1f} s  {process.name} died by itself, {process.exit_code}"
                )
                process.terminate(0)
                process.start()
