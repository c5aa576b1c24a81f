from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from core.security.ids import new_id
from messaging.domain.lifecycle import OPEN_BATCH, BatchState


class Batch(models.Model):
    """One request to a provider: which sends in which order, and what came back.

    Committed twice before the request: when its sends are claimed (`preparing`: nothing has been rendered, no request has
    left), and with the digest of its bytes. The bytes are not kept: they are rebuilt from the sends and `rendered_at` (all
    that goes into them), and must give `digest`. A batch is a job (`core_processed_jobs`, key `batch:<id>`): lease and
    fence are there.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    provider = models.CharField(max_length=32)
    channel = models.CharField(max_length=16)
    rail = models.CharField(max_length=16)
    state = models.CharField(max_length=20, default=BatchState.CLAIMED.value)
    send_ids = ArrayField(models.UUIDField())
    digest = models.BinaryField(max_length=32, null=True)  # null while it is being prepared
    in_hand = models.UUIDField(null=True)  # the send being rendered, noted only in a batch of suspects (`Send.mishaps`)
    idempotency_key = models.CharField(max_length=64)
    rendered_at = models.DateTimeField()
    attempts = models.IntegerField(default=1, help_text="Requests made with these bytes, the one in hand included.")
    unanswered = models.SmallIntegerField(
        db_default=0, help_text="Attempts in a row whose worker vanished before it recorded an answer."
    )
    http_status = models.IntegerField(null=True)
    error_code = models.CharField(max_length=64, null=True)
    error_detail = models.TextField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "messaging_batches"
        verbose_name_plural = "batches"
        constraints = [
            models.CheckConstraint(
                name="messaging_batches_state", condition=Q(state__in=[s.value for s in BatchState])
            ),
            models.CheckConstraint(name="messaging_batches_not_empty", condition=Q(send_ids__len__gte=1)),
            models.CheckConstraint(
                name="messaging_batches_prepared_has_digest", condition=Q(state="preparing") | Q(digest__isnull=False)
            ),
        ]
        indexes = [
            models.Index(
                name="messaging_batches_unended",
                fields=["channel", "rail", "id"],
                condition=Q(state__in=sorted(s.value for s in OPEN_BATCH)),
            ),
            models.Index(name="messaging_batches_ambiguous", fields=["id"], condition=Q(state="ambiguous")),
        ]

    def __str__(self) -> str:
        return str(self.pk)
