from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from core.models import Tenant
from core.security.ids import new_id
from messaging.domain.lifecycle import SendStatus
from messaging.domain.rails import Channel
from messaging.models.blast import Blast
from messaging.models.content import Content
from messaging.models.lane import ON_ITS_RAIL


class Send(models.Model):
    """The ledger: one notification to one recipient, one life (`lifecycle.SEND_STEPS`).

    Written only through `messaging.ledger`. Narrow on purpose, with no index that is not read: each change of status
    writes a new entry into every index that is not partial. `sealed` is `[to, variables]`, bound to the send's id;
    `fingerprint` stands for the address. Without foreign-key constraints: the ledger writes rows only from parents it has just
    read, parents are never deleted, and three deferred checks a row would cost more than the insert itself.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, db_constraint=False, on_delete=models.PROTECT, db_index=False, related_name="+")
    blast = models.ForeignKey(
        Blast, null=True, db_constraint=False, on_delete=models.PROTECT, db_index=False, related_name="sends"
    )
    content = models.ForeignKey(
        Content, db_constraint=False, on_delete=models.PROTECT, db_index=False, related_name="+"
    )
    channel = models.CharField(max_length=16)
    category = models.CharField(max_length=16)
    rail = models.CharField(max_length=16)
    priority = models.SmallIntegerField()
    status = models.CharField(max_length=16)
    not_before = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True)
    fingerprint = models.BinaryField(max_length=16)
    sealed = models.BinaryField()
    attempts = models.SmallIntegerField(default=0)
    # How often preparing it ended a worker, or failed in a way that nobody foresaw. From 1 on it is a suspect: it is rendered
    # apart from other sends, from 2 on alone, and 3 is the end (`ledger.preparing`).
    mishaps = models.SmallIntegerField(db_default=0)
    held_since = models.DateTimeField(null=True)  # it cannot be opened here: since when
    held_by = models.BigIntegerField(null=True)  # scheduled: the sender hold that it waits for, instead of `not_before`
    batch_id = models.UUIDField(null=True)  # the batch that holds it, or the last that did
    provider_id = models.CharField(max_length=128, null=True)
    error_code = models.CharField(max_length=64, null=True)
    error_detail = models.TextField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    accepted_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "messaging_sends"
        constraints = [
            models.CheckConstraint(
                name="messaging_sends_category_rail",
                condition=ON_ITS_RAIL,
            ),
            models.CheckConstraint(name="messaging_sends_channel", condition=Q(channel__in=[c.value for c in Channel])),
            models.CheckConstraint(
                name="messaging_sends_status", condition=Q(status__in=[s.value for s in SendStatus])
            ),
            models.CheckConstraint(
                name="messaging_sends_bound_has_batch",
                condition=~Q(status__in=["sending", "ambiguous"]) | Q(batch_id__isnull=False),
            ),
            models.CheckConstraint(
                name="messaging_sends_sent_is_accepted", condition=~Q(status="sent") | Q(accepted_at__isnull=False)
            ),
            models.UniqueConstraint(
                name="messaging_sends_blast_recipient",
                fields=["blast", "fingerprint"],
                condition=Q(blast__isnull=False),
            ),
        ]
        indexes = [
            models.Index(
                name="messaging_sends_single_due",
                fields=["channel", "rail", "priority", "tenant", "id"],
                condition=Q(status="queued", blast=None),
            ),
            models.Index(
                name="messaging_sends_blast_due",
                fields=["blast", "id"],
                condition=Q(status="queued", blast__isnull=False),
            ),
            models.Index(
                name="messaging_sends_blast_wait",
                fields=["blast", "id"],
                condition=Q(status="scheduled", blast__isnull=False),
            ),
            models.Index(
                name="messaging_sends_wake", fields=["priority", "not_before"], condition=Q(status="scheduled")
            ),
            models.Index(
                name="messaging_sends_held",
                fields=["held_by", "priority", "id"],
                condition=Q(status="scheduled", held_by__isnull=False),
            ),
            models.Index(
                name="messaging_sends_expiry",
                fields=["expires_at"],
                condition=Q(status__in=["scheduled", "queued"], expires_at__isnull=False),
            ),
            # Lists (`ledger.listing`). The first is the only one that is written at each change of status, and then next
            # to its last entry; the second has none for the statuses that every send passes through.
            models.Index("tenant", "priority", F("id").desc(nulls_last=True), name="messaging_sends_tenant"),
            models.Index(
                "tenant",
                "priority",
                "status",
                F("id").desc(nulls_last=True),
                name="messaging_sends_tenant_status",
                condition=~Q(status__in=["queued", "sending"]),
            ),
            models.Index(
                "tenant",
                "fingerprint",
                F("id").desc(nulls_last=True),
                name="messaging_sends_tenant_single",
                condition=Q(blast=None),
            ),
        ]

    def __str__(self) -> str:
        return str(self.pk)
