"""Contents compiled before a token is taken: whoever has large templates, or has just started, makes nobody wait for a token
that was taken for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from messaging.domain.rails import Channel, Rail
from messaging.ledger import heads
from messaging.ledger.candidates import Lane
from messaging.ledger.contents import KEPT_BYTES, Compiled, Contents

#: Seconds of compiling after which new work goes first, and after which whatever is ready goes in any case: the leader's seat
#: is held meanwhile.
PATIENCE, LONGEST = 0.02, 2.0
#: Bytes that one look compiles at most: half of what is kept, so that it is there when it is rendered.
MOST_BYTES = KEPT_BYTES // 2
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
        """Compile what the next sends of `lanes` need. Returns the lanes that are ready, with as many sends as are: all of them,
        unless `interrupted` says that somebody has come, or it takes too long. One send is, in any case."""
        wanted = self._wanted(channel, rail, lanes, max_batch)
        contents = Contents({pk for needed in wanted for pk in needed})
        started, size = time.monotonic(), 0
        ready: list[Lane] = []
        for lane, needed in zip(lanes, wanted, strict=True):
            sends = lane.sends
            for n, pk in enumerate(needed):
                if not contents.is_cold(pk):
                    continue
                took = time.monotonic() - started
                late = size > MOST_BYTES or took > LONGEST or (took > PATIENCE and interrupted())
                if late and (ready or n):
                    sends = n
                    break
                compiled = contents[pk]  # and kept
                size += compiled.size if isinstance(compiled, Compiled) else 0
            if sends:
                ready.append(lane if sends == lane.sends else replace(lane, sends=sends))
        return ready

    def _wanted(self, channel: Channel, rail: Rail, lanes: Sequence[Lane], max_batch: int) -> list[list[int]]:
        """Of each lane, the contents of about as many of its next sends as can be in one batch."""
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
