from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from core.models import Tenant


class Content(models.Model):
    """What is sent, stored once and never changed: Liquid source or literal text. Sends refer to it.

    `document` is `{from, reply_to, subject, html, text, headers}`, sealed (it holds addresses) and bound to the
    tenant; `digest` (of tenant and document, keyed) finds an equal one. `from_domain` is kept in clear: it is the
    tenant's public name, and refusals are sorted by it.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, db_index=False, related_name="+")
    digest = models.BinaryField(max_length=32)
    liquid = models.BooleanField(help_text="False: sent as it stands.")
    from_domain = models.CharField(max_length=253)
    sealed = models.BinaryField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "messaging_contents"
        constraints = [models.UniqueConstraint(name="messaging_contents_one", fields=["tenant", "digest"])]

    def __str__(self) -> str:
        return f"content {self.pk}"
