"""A lane: what is paused, held and cancelled as one; and what is known of the culprit in it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class LaneKey:
    """A blast, or a tenant's single sends of one priority (None for a blast)."""

    tenant: int
    blast: UUID | None
    priority: int | None = None

    @property
    def place(self) -> tuple[int, str, int]:
        """By which lanes are put in order: one without a blast cannot be compared with one that has one."""
        return self.tenant, str(self.blast), -1 if self.priority is None else self.priority


@dataclass(frozen=True, slots=True)
class Search:
    """`suspects`: a culprit is among so many of the lane's oldest sends (0: nothing is known; 1 in a held lane: the oldest was
    refused alone). `convicting`: another one was accepted after that."""

    suspects: int = 0
    convicting: bool = False
