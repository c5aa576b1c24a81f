from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models.functions import Now

from core.models import Tenant


class IdempotencyKey(models.Model):
    """A tenant's promise that two requests are the same one. How long it is kept: `messaging.ledger.expired_keys`."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, db_index=False, related_name="+")
    operation = models.CharField(max_length=16)  # "sends" | "blasts"
    key = models.CharField(max_length=255)
    request_digest = models.BinaryField(max_length=32)
    answer = models.JSONField(help_text="What the first request was answered; repeated as it is.")
    created_at = models.DateTimeField(db_default=Now())
    # The hour lets one look be enough for what ended within an hour, as nearly everything does.
    keep_until = models.DateTimeField(db_default=Now() + timedelta(days=7, hours=1))
    over = models.BooleanField(db_default=False)  # when it was last looked at

    class Meta:
        db_table = "messaging_idempotency_keys"
        constraints = [
            models.UniqueConstraint(name="messaging_idempotency_one", fields=["tenant", "operation", "key"]),
        ]
        indexes = [models.Index(name="messaging_idempotency_due", fields=["keep_until"])]

    def __str__(self) -> str:
        return f"{self.operation} {self.pk}"
