"""What is live, in narrow tables: read by every look for work, and written so often that wide rows would bloat."""

from __future__ import annotations

from django.db import models


class DueLane(models.Model):
    """A mark: a tenant has due single sends of a priority, or had some; or its lane has changed, closed or opened.

    Left by a trigger (migration 0009) in the transaction that makes sends due, or changes the tenant's `active` or its lane;
    seen by everybody from the same moment on as that itself. Whoever leaves one writes a row of its own: nobody waits for
    anybody. Only the clock judges (`ledger.lane_marks`): of a lane's marks one stays while something is due. `closed_until` null:
    the lane is open; else it is looked at again then. Marks that are not judged yet count as open.
    """

    channel = models.CharField(max_length=16)
    rail = models.CharField(max_length=16)
    priority = models.SmallIntegerField()
    tenant_id = models.BigIntegerField()
    judged = models.BooleanField(db_default=False)
    closed_until = models.DateTimeField(null=True)

    class Meta:
        db_table = "messaging_due_lanes"
        indexes = [
            # The newest mark of a lane first: dead ones, which an open snapshot keeps, lie behind it.
            models.Index(
                name="messaging_due_lanes_ring",
                fields=["channel", "rail", "priority", "tenant_id", "-id"],
                condition=models.Q(closed_until=None),
            ),
            models.Index(name="messaging_due_lanes_one", fields=["tenant_id", "channel", "rail", "priority", "-id"]),
            models.Index(name="messaging_due_lanes_new", fields=["id"], condition=models.Q(judged=False)),
            models.Index(
                name="messaging_due_lanes_open", fields=["id"], condition=models.Q(judged=True, closed_until=None)
            ),
            models.Index(
                name="messaging_due_lanes_closed",
                fields=["closed_until"],
                condition=models.Q(closed_until__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.channel} {self.rail} {self.priority}"


class BlastMark(models.Model):
    """Sends of a blast went back to waiting, from `low` on. Left by a trigger, a row of its own; the clock lowers the hint."""

    blast_id = models.UUIDField()
    low = models.UUIDField()

    class Meta:
        db_table = "messaging_blast_marks"

    def __str__(self) -> str:
        return f"{self.blast_id} {self.low}"


class BlastHint(models.Model):
    """Of a running blast: `low` is an id at or below its first queued send, `has_due` says that something of it may go.

    The clock writes both from facts; launch, resume and redrive set `has_due`, too. A wrong hint delays a blast by one beat of
    the clock and never loses a send. Rows of their own, without an index on what changes with every beat: an open snapshot
    keeps every version, and those of the blasts themselves are wide.
    """

    blast_id = models.UUIDField(primary_key=True)
    channel = models.CharField(max_length=16)
    rail = models.CharField(max_length=16)
    priority = models.SmallIntegerField()
    tenant_id = models.BigIntegerField()
    has_due = models.BooleanField()
    low = models.UUIDField(null=True)

    class Meta:
        db_table = "messaging_blast_hints"
        indexes = [
            models.Index(
                name="messaging_blast_hints_ring",
                fields=["channel", "rail", "priority", "has_due", "tenant_id", "blast_id"],
            )
        ]

    def __str__(self) -> str:
        return str(self.blast_id)
