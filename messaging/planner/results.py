"""What a planner tells: while it works, and at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from messaging.domain.lifecycle import BlastState
from messaging.models import Blast


@dataclass(frozen=True, slots=True)
class Progress:
    """What is committed so far. `total` is the number of rows to expect (a guess), None if nobody knows."""

    blast_id: UUID
    rows: int
    planned: int
    duplicates: int
    rejected: int
    total: int | None


#: Called when the blast exists, and after each chunk. What it raises ends the planning; the blast can be resumed.
OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class PlanResult:
    """rows = planned + duplicates + rejected. `replayed`: nothing was planned now, the blast had been launched before."""

    blast_id: UUID
    rows: int
    planned: int
    duplicates: int
    rejected: int
    state: BlastState
    replayed: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, blast: Blast, *, replayed: bool = False) -> Self:
        return cls(
            blast_id=blast.pk,
            rows=blast.rows_read,
            planned=blast.planned,
            duplicates=blast.duplicates,
            rejected=blast.rejected,
            state=BlastState(blast.state),
            replayed=replayed,
        )
