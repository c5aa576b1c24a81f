from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from core.models import Tenant


class IdempotencyKey(models.Model):
    """A tenant's promise that two requests are the same one. Kept for `messaging.clock.steps.KEEP_DAYS`, then pruned."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, db_index=False, related_name="+")
    operation = models.CharField(max_length=16)  # "sends" | "blasts"
    key = models.CharField(max_length=255)
    request_digest = models.BinaryField(max_length=32)
    answer = models.JSONField(help_text="What the first request was answered; repeated as it is.")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "messaging_idempotency_keys"
        constraints = [
            models.UniqueConstraint(name="messaging_idempotency_one", fields=["tenant", "operation", "key"]),
        ]
        indexes = [models.Index(name="messaging_idempotency_age", fields=["created_at"])]

    def __str__(self) -> str:
        return f"{self.operation} {self.pk}"
