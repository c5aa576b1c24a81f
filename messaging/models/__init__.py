"""The tables of the domain. One file per concept."""

from messaging.models.allowance import KeyAllowance, TenantAllowance
from messaging.models.batch import Batch
from messaging.models.blast import Blast, BlastReject, BlastUpload
from messaging.models.bucket import RateLimitBucket
from messaging.models.content import Content
from messaging.models.counts import BlastCount, BlastDelta, BlastFold, BlastPace
from messaging.models.idempotency import IdempotencyKey
from messaging.models.lane import TenantLane
from messaging.models.live import BlastHint, BlastMark, DueLane
from messaging.models.redrive import Redrive
from messaging.models.send import Send
from messaging.models.sender_domain import SenderDomain
from messaging.models.sender_hold import SenderHold

__all__ = [
    "Batch",
    "Blast",
    "BlastCount",
    "BlastDelta",
    "BlastFold",
    "BlastHint",
    "BlastMark",
    "BlastPace",
    "BlastReject",
    "BlastUpload",
    "Content",
    "DueLane",
    "IdempotencyKey",
    "KeyAllowance",
    "RateLimitBucket",
    "Redrive",
    "Send",
    "SenderDomain",
    "SenderHold",
    "TenantAllowance",
    "TenantLane",
]
