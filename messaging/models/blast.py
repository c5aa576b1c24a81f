from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from core.models import Tenant
from core.security.ids import new_id
from messaging.domain.lifecycle import BlastState
from messaging.models.content import Content
from messaging.models.lane import ON_ITS_RAIL, LaneMixin


class Blast(LaneMixin):
    """Many sends planned together from one content. Its row is their lane: paused, held and cancelled here.

    What changes while it is sent is kept in rows of their own: hints (`models.live`), counts (`models.counts`).
    `reason`: why it was cancelled, if nobody asked for it.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, db_index=False, related_name="blasts")
    content = models.ForeignKey(Content, on_delete=models.PROTECT, db_index=False, related_name="+")
    name = models.CharField(max_length=200, default="", blank=True)
    channel = models.CharField(max_length=16)
    category = models.CharField(max_length=16)
    rail = models.CharField(max_length=16)
    priority = models.SmallIntegerField()
    state = models.CharField(max_length=16, default=BlastState.PLANNING.value)
    not_before = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=64, db_default="", default="", blank=True)
    # Planning: how far the recipient list was read (committed together with the sends of those rows), what came of it.
    rows_read = models.BigIntegerField(default=0)
    planned = models.BigIntegerField(default=0)
    duplicates = models.BigIntegerField(default=0)
    rejected = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now())
    launched_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)  # no open send is left (also of a cancelled blast)

    class Meta:
        db_table = "messaging_blasts"
        constraints = [
            models.CheckConstraint(
                name="messaging_blasts_category_rail",
                condition=ON_ITS_RAIL,
            ),
            models.CheckConstraint(
                name="messaging_blasts_state", condition=models.Q(state__in=[s.value for s in BlastState])
            ),
            models.CheckConstraint(
                name="messaging_blasts_hold_has_end",
                condition=models.Q(hold_code="") | models.Q(held_until__isnull=False),
            ),
        ]
        indexes = [
            # What the clock walks: neither drafts nor what is paused, however many there are.
            models.Index(
                name="messaging_blasts_moving",
                fields=["id"],
                condition=models.Q(finished_at=None, state__in=["running", "cancelled"]),
            ),
            models.Index(name="messaging_blasts_drafts", fields=["created_at"], condition=models.Q(state="planning")),
            models.Index(name="messaging_blasts_tenant", fields=["tenant", "id"]),
        ]

    def __str__(self) -> str:
        return str(self.pk)


class BlastUpload(models.Model):
    """One list of recipients read into a blast: how far, and what came of it. A list given to `plan_blast` is number 1.

    `lease_until` is set while somebody reads it, a little ahead: until then no other list may be read into the blast.
    Without `finished_at` it was cut, or is being read.
    """

    blast = models.ForeignKey(Blast, on_delete=models.CASCADE, db_index=False, related_name="uploads")
    number = models.IntegerField()
    rows_read = models.BigIntegerField(default=0)
    planned = models.BigIntegerField(default=0)
    duplicates = models.BigIntegerField(default=0)
    rejected = models.BigIntegerField(default=0)
    lease_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "messaging_blast_uploads"
        constraints = [models.UniqueConstraint(name="messaging_blast_uploads_one", fields=["blast", "number"])]

    def __str__(self) -> str:
        return f"{self.blast_id} {self.number}"


class BlastReject(models.Model):
    """A row of a recipient list that became no send: its line and why. Never the row itself (it may hold an address)."""

    blast = models.ForeignKey(Blast, on_delete=models.CASCADE, db_index=False, related_name="rejects")
    upload = models.IntegerField(default=1, help_text="Number of the list within the blast.")
    line = models.BigIntegerField(help_text="1 is the header of a CSV file.")
    code = models.CharField(max_length=64)
    reason = models.TextField()

    class Meta:
        db_table = "messaging_blast_rejects"
        constraints = [models.UniqueConstraint(name="messaging_blast_rejects_one", fields=["blast", "upload", "line"])]

    def __str__(self) -> str:
        return f"line {self.line}: {self.code}"
