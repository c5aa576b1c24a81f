from __future__ import annotations

from django.core.validators import RegexValidator
from django.db import models
from django.db.models.functions import Now

from core.models import Tenant

#: A host name in ASCII, lower case, at least two labels (an internationalised domain in its `xn--` form).
DOMAIN_PATTERN = r"^(?=.{4,253}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]\Z"


class SenderDomain(models.Model):
    """A domain in whose name a tenant may send. `from` must be in one of them, exactly: no implied subdomains."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="sender_domains")
    domain = models.CharField(
        max_length=253,
        validators=[RegexValidator(DOMAIN_PATTERN, "Enter a domain such as mail.customer.org, in lower case.")],
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "messaging_sender_domains"
        ordering = ["domain"]
        constraints = [
            models.UniqueConstraint(name="messaging_sender_domains_one", fields=["tenant", "domain"]),
            models.CheckConstraint(
                name="messaging_sender_domains_form",
                condition=models.Q(domain__regex=DOMAIN_PATTERN.replace(r"\Z", "$")),
            ),
        ]

    def __str__(self) -> str:
        return self.domain
