"""A lane is what is found, paused, held and cancelled as one: a blast, or a tenant's single sends on a rail."""

from __future__ import annotations

from django.db import models

from core.models import Tenant
from messaging.domain.rails import Channel, Rail

#: The CHECK of sends and blasts. Written out rather than made from `rails.RAIL_OF`: it is what a mistake there runs into.
ON_ITS_RAIL = (
    models.Q(category="transactional", rail="transactional", priority=0)
    | models.Q(category="product", rail="transactional", priority=1)
    | models.Q(category="marketing", rail="marketing", priority=2)
)


class LaneMixin(models.Model):
    """What the dispatcher may write on a lane when the provider refuses its content.

    `isolated`: its sends go out apart from other lanes', so that a refusal names it and nobody else waits for it; with the
    lanes of the same `party`, half of those that were refused together, or alone.
    `suspects`: a culprit is among so many of its oldest sends; they are halved until it is alone. `convicting`: another
    one was accepted after the oldest was refused alone; refused once more, it is the culprit.
    `hold_code` with `held_until`: nothing is sent but one send at `held_until`, a trial whether the cause is gone.
    """

    isolated = models.BooleanField(default=False)
    party = models.UUIDField(null=True, blank=True)
    suspects = models.IntegerField(db_default=0)
    convicting = models.BooleanField(db_default=False)
    hold_code = models.CharField(max_length=64, default="", blank=True)
    hold_detail = models.TextField(default="", blank=True)
    hold_seconds = models.IntegerField(default=0)  # of the last hold; the next one lasts twice as long
    held_until = models.DateTimeField(null=True, blank=True)
    # Batches with this lane in them that ended unknown twice while others were accepted (`ledger.stalls`); until when it counts.
    stalls = models.SmallIntegerField(db_default=0)
    stalls_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True


class TenantLane(LaneMixin):
    """A tenant's single sends of one priority on a rail, if there is anything to say of them. No row: running, mixed, not held.

    By priority: product mail that is refused must not keep the tenant's own login codes, and what is known of the one must not
    be forgotten for the other (then both would be refused together with strangers again and again). `paused` is written for all
    priorities of a rail.

    Written under the tenant row's lock (FOR NO KEY UPDATE), because a missing row cannot be locked.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="lanes")
    channel = models.CharField(max_length=16)
    rail = models.CharField(max_length=16)
    paused = models.BooleanField(default=False)
    priority = models.SmallIntegerField()

    class Meta:
        db_table = "messaging_tenant_lanes"
        constraints = [
            models.UniqueConstraint(
                name="messaging_tenant_lanes_one", fields=["tenant", "channel", "rail", "priority"]
            ),
            models.CheckConstraint(
                name="messaging_tenant_lanes_rail", condition=models.Q(rail__in=[r.value for r in Rail])
            ),
            models.CheckConstraint(
                name="messaging_tenant_lanes_channel", condition=models.Q(channel__in=[c.value for c in Channel])
            ),
            models.CheckConstraint(
                name="messaging_tenant_lanes_hold_has_end",
                condition=models.Q(hold_code="") | models.Q(held_until__isnull=False),
            ),
        ]
        indexes = [
            # Rows that say nothing, which the clock deletes.
            models.Index(
                name="messaging_tenant_lanes_idle",
                fields=["id"],
                condition=models.Q(paused=False, isolated=False, hold_code=""),
            )
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.channel} {self.rail} {self.priority}"
