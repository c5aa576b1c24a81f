"""Contents compiled before a token is taken: whoever has large templates, or has just started, makes nobody wait for a token
that was taken for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from uuid import UUID

from messaging.contents import Contents
from messaging.ledger import heads
from messaging.ledger.candidates import Lane
from messaging.rails import Channel, Rail

#: Seconds of compiling after which new work goes first.
PATIENCE = 0.02
#: Blasts whose content a process remembers.
_KEPT = 10_000


class Prefetch:
    """Of one process and rail; used by its leader."""

    def __init__(self) -> None:
        self._of_blast: dict[UUID, int] = {}

    def warm(
        self,
        channel: Channel,
        rail: Rail,
        lanes: Sequence[Lane],
        max_batch: int,
        interrupted: Callable[[], bool],
    ) -> Sequence[Lane]:
        """Compile what the next sends of `lanes` need. Returns the lanes that are ready: all, or once `interrupted` says so
        those that are. At least one is."""
        wanted = self._wanted(channel, rail, lanes, max_batch)
        contents = Contents({pk for needed in wanted for pk in needed})
        started = time.monotonic()
        cold = set(contents.cold())
        ready: list[Lane] = []
        for lane, needed in zip(lanes, wanted, strict=True):
            if ready and cold & set(needed) and time.monotonic() > started + PATIENCE and interrupted():
                continue
            for pk in needed:
                if pk in cold:
                    contents[pk]  # compiled, and kept
                    cold.discard(pk)
            ready.append(lane)
        return ready

    def _wanted(self, channel: Channel, rail: Rail, lanes: Sequence[Lane], max_batch: int) -> list[Collection[int]]:
        """Of each lane, the contents of about as many sends as can be in one batch."""
        singles = [lane for lane in lanes if lane.blast is None]
        unknown = {lane.blast for lane in lanes if lane.blast is not None} - self._of_blast.keys()
        if unknown:
            if len(self._of_blast) > _KEPT:
                self._of_blast.clear()
            self._of_blast |= heads.of_blasts(unknown)
        share = 2 * math.ceil(max_batch / max(1, len(singles)))
        takes = [min(lane.sends, max_batch, share) for lane in singles]
        found = heads.of_singles(channel, rail, singles, takes) if singles else {}
        return [
            found.get((lane.tenant, lane.priority), [])
            if lane.blast is None
            else [self._of_blast[lane.blast]]
            if lane.blast in self._of_blast
            else []
            for lane in lanes
        ]
