"""Calls of the governor as values, so that the script and its model can be given the same ones."""

from dataclasses import dataclass

from core.governor.client import Bucket, Decision, Event, Governor, Limits, Refusal, Settled, Want


@dataclass(frozen=True)
class Acquire:
    """The arguments of `Governor.acquire`."""

    grant: str
    batch: str
    rail: str
    limits: Limits
    wants: tuple[Want, ...] = ()
    replay: bool = False
    max_batch: int = 100
    retry: bool = False
    probe_batch: int | None = None

    @property
    def marketing(self) -> bool:
        return self.rail == "marketing"

    def reserve(self, bucket: Bucket) -> float:
        return bucket.reserve if self.marketing else 0.0

    def to(self, governor: Governor) -> Decision:
        return governor.acquire(**vars(self))


@dataclass(frozen=True)
class Settle:
    """The arguments of `Governor.settle`."""

    grant: str
    batch: str
    event: Event
    limits: Limits
    rail: str = "transactional"
    epoch: int = -1
    unused: bool = False
    retry: bool = False
    refused: Refusal | None = None
    failed_for: tuple[str, ...] = ()
    back: tuple[tuple[int, int, Bucket], ...] = ()
    retry_after: float | None = None
    remaining: int | None = None

    @property
    def marketing(self) -> bool:
        return self.rail == "marketing"

    @property
    def stops(self) -> bool:
        return self.event in (Event.RATE_LIMITED, Event.QUOTA)

    def to(self, governor: Governor) -> Settled:
        return governor.settle(**vars(self))
