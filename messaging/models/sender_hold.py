from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from messaging.domain.rails import Channel


class SenderHold(models.Model):
    """A sender domain that the provider refuses, or that was in a refused request with others. No row: like any other.

    Without `hold_code` it is a suspect: its sends go out apart from those of other domains, but for those of the same
    `party`, until a request is accepted. With it they wait until `held_until` (single sends that a claim has met are `held_by`
    it); then one send, of whatever lane, tries whether it is accepted now. A day after the last of that it is deleted.
    """

    channel = models.CharField(max_length=16)
    domain = models.CharField(max_length=253)
    party = models.UUIDField(null=True, blank=True)
    hold_code = models.CharField(max_length=64, default="", blank=True)
    hold_detail = models.TextField(default="", blank=True)
    hold_seconds = models.IntegerField(default=0)  # of the last hold; the next one lasts twice as long
    held_until = models.DateTimeField(null=True, blank=True)
    written_at = models.DateTimeField(db_default=Now(), editable=False)  # when it was last suspected, or refused

    class Meta:
        db_table = "messaging_sender_holds"
        constraints = [
            models.UniqueConstraint(name="messaging_sender_holds_one", fields=["channel", "domain"]),
            models.CheckConstraint(
                name="messaging_sender_holds_channel", condition=models.Q(channel__in=[c.value for c in Channel])
            ),
            models.CheckConstraint(
                name="messaging_sender_holds_has_end",
                condition=models.Q(hold_code="") | models.Q(held_until__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.domain
