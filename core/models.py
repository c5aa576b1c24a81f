"""Tables of the mechanism: who sends (tenants, keys), which work was done, what failed for good."""

from __future__ import annotations

import hashlib
import secrets
from typing import ClassVar

from django.core.validators import RegexValidator
from django.db import models
from django.db.models.functions import Now
from django.utils import timezone


class Tenant(models.Model):
    """A customer of the platform. All tenants share one provider account.

    `active = False` refuses its API keys and makes its sends wait; nothing is lost. Its row is also the lock of its
    single sends: whoever pauses or holds them takes it FOR NO KEY UPDATE, a claim holds it FOR SHARE.
    """

    slug = models.CharField(
        max_length=63,
        unique=True,
        validators=[RegexValidator(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z", "Use a–z, 0–9 and inner hyphens.")],
        help_text="Short name used in commands and logs: a–z, 0–9 and hyphens.",
    )
    name = models.CharField(max_length=200)
    active = models.BooleanField(default=True, help_text="Off: its keys are refused and its sends wait.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "core_tenants"
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.slug


class ApiKey(models.Model):
    """A bearer key of a tenant. Only its SHA-256 is stored; the key itself is shown once, by `issue`.

    The key has 256 random bits, so a fast hash is enough (there is nothing to guess). `prefix` is its public start,
    by which an operator recognises it.
    """

    PREFIX: ClassVar[str] = "drk_"

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100, help_text="What it is used for, e.g. “web shop, production”.")
    prefix = models.CharField(max_length=16, editable=False)
    digest = models.BinaryField(max_length=32, unique=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        db_table = "core_api_keys"
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.name})"

    @staticmethod
    def digest_of(key: str) -> bytes:
        return hashlib.sha256(key.encode()).digest()

    @classmethod
    def issue(cls, tenant: Tenant, name: str) -> tuple[ApiKey, str]:
        """Make a key. Returns the row and the key in clear: the only time anybody sees it."""
        key = cls.PREFIX + secrets.token_urlsafe(32)
        row = cls.objects.create(tenant=tenant, name=name, prefix=key[:12], digest=cls.digest_of(key))
        return row, key

    def revoke(self) -> None:
        """Refuse this key from now on. Safe to repeat."""
        type(self).objects.filter(pk=self.pk, revoked_at=None).update(revoked_at=timezone.now())


class ProcessedJob(models.Model):
    """A unit of work with a key that comes from the work: it takes effect once.

    Open: `done_at` is null and whoever holds `fence` may finish it; past `lease_until` another worker may take it over
    by raising the fence. Done: `done_at` was written in the transaction that wrote the result.
    """

    job_key = models.CharField(max_length=200, primary_key=True)
    fence = models.BigIntegerField(default=1)
    lease_until = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now())
    done_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "core_processed_jobs"
        constraints = [
            models.CheckConstraint(name="core_processed_jobs_fence_positive", condition=models.Q(fence__gte=1))
        ]
        indexes = [
            models.Index(name="core_jobs_open_lease", fields=["lease_until"], condition=models.Q(done_at=None)),
            models.Index(name="core_jobs_done_at", fields=["done_at"], condition=models.Q(done_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.job_key


class DeadLetter(models.Model):
    """What failed for good, and why: a send, or an actor (`core.broker.dead_letters`). Holds only failures; work whose
    outcome nobody knows is a state of the ledger. A send has one letter, an actor one for each bug: met again, it is counted."""

    channel = models.CharField(max_length=16)
    send_id = models.UUIDField(null=True, unique=True, help_text="The send that failed; empty for a dead actor.")
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, db_index=False)
    batch_id = models.UUIDField(null=True)
    reason = models.CharField(max_length=64, help_text="Stable code.")
    detail = models.TextField(default="", help_text="The provider's words, without addresses.")
    redriven = models.PositiveIntegerField(default=0)
    traceback = models.TextField(db_default="", help_text="Of a dead actor: places and kinds of error, no values.")
    fingerprint = models.CharField(max_length=64, null=True, help_text="Of a dead actor's bug.")
    times = models.PositiveIntegerField(db_default=1, help_text="How often a dead actor met it.")
    created_at = models.DateTimeField(db_default=Now())
    last_at = models.DateTimeField(null=True, help_text="When a dead actor met it last.")

    class Meta:
        db_table = "core_dead_letters"
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(name="core_dead_letters_bug", fields=["fingerprint"])]
        indexes = [models.Index(name="core_dead_letters_tenant", fields=["tenant", "-id"])]

    def __str__(self) -> str:
        return f"{self.reason}: {self.send_id or 'actor'}"
