"""The admin: what an operator sets (tenants and their domains, rate limits), and what he looks into: blasts, sends, batches,
dead letters. Those are read-only, and each page costs the same with a thousand rows as with a million: no COUNT, no OFFSET
that grows, nothing sealed is read.

`keyset` pages by key, `readonly` what all of them share, `filters` and `cells` what is in them; then one file a table.
"""

from messaging.admin.batches import BatchAdmin
from messaging.admin.blasts import BlastAdmin
from messaging.admin.buckets import RateLimitBucketAdmin
from messaging.admin.dead_letters import DeadLetterAdmin
from messaging.admin.keys import ApiKeyAdmin
from messaging.admin.sends import SendAdmin
from messaging.admin.tenants import TenantAdmin

__all__ = [
    "ApiKeyAdmin",
    "BatchAdmin",
    "BlastAdmin",
    "DeadLetterAdmin",
    "RateLimitBucketAdmin",
    "SendAdmin",
    "TenantAdmin",
]
