from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from core.models import Tenant


class Redrive(models.Model):
    """A send that was sent again: from what, by whom, and whether he accepted that it may arrive twice. Never changed."""

    send_id = models.UUIDField(db_index=True)
    tenant = models.ForeignKey(Tenant, db_constraint=False, on_delete=models.PROTECT, db_index=False, related_name="+")
    was = models.CharField(max_length=16, help_text="failed, or ambiguous: then the risk of a duplicate was accepted.")
    batch_id = models.UUIDField(null=True, help_text="The batch that held it then.")
    reason = models.CharField(max_length=64, default="", help_text="Why it had failed, or was ambiguous.")
    by = models.CharField(max_length=150, help_text="Who decided.")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "messaging_redrives"
        constraints = [
            models.CheckConstraint(
                name="messaging_redrives_somebody_accepts", condition=~models.Q(was="ambiguous") | ~models.Q(by="")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.send_id} {self.was}"
