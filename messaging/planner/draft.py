"""What a blast is to be, but for its recipients: checked as a whole before anything is stored, then stored once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self
from uuid import UUID

from django.db import transaction

from core.models import Tenant
from core.security.crypto import keyed_digest
from core.security.hashing import canonical_json
from messaging.channels.email import Document
from messaging.channels.email.address import UNSAFE
from messaging.domain.errors import Forbidden, InvalidInput
from messaging.domain.rails import PRIORITY_OF, RAIL_OF, Category, Channel
from messaging.ledger import idempotency
from messaging.ledger.contents import store_contents
from messaging.models import Blast
from messaging.services.allowances import Allowance, allowance_of
from messaging.services.launch import OPERATION
from messaging.services.sender_domains import require_sender_domain
from messaging.services.submit import check_times, parse_category, parse_channel, parse_time, require_bucket

MAX_NAME = 200
#: What a draft holds of a field that was not given (`idempotency.digest_of`).
_ABSENT = {"channel": Channel.EMAIL, "name": "", "not_before": None, "expires_at": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    document: Document
    channel: Channel
    category: Category
    name: str
    not_before: datetime | None
    expires_at: datetime | None
    key: str | None

    @classmethod
    def parse(
        cls,
        *,
        from_: object,
        subject: object,
        html: object,
        text: object,
        reply_to: object,
        headers: object,
        category: object,
        channel: object,
        name: object,
        not_before: object,
        expires_at: object,
        idempotency_key: object,
    ) -> Self:
        """Raises InvalidInput, TooLarge with the field at fault. Asks the database for nothing."""
        document = Document.parse(
            from_=from_, subject=subject, html=html, text=text, reply_to=reply_to, headers=headers
        )
        return cls(
            document=document,
            channel=parse_channel(channel),
            category=parse_category(category),
            name=_name(name),
            not_before=parse_time(not_before, "not_before"),
            expires_at=parse_time(expires_at, "expires_at"),
            key=idempotency.parse_key(idempotency_key),
        )

    def digest(self) -> bytes:
        """Equal for equal drafts. Recipients are not part of it: the same list, in the state it has now, is what an
        interrupted plan is resumed with."""
        return idempotency.digest_of(self._values() | {"document": self.document.given()}, _ABSENT)

    def older_digest(self) -> bytes:
        """See `idempotency.Claim.older`."""
        return keyed_digest(canonical_json(self._values() | {"document": self.document.to_bytes().decode()}))

    def _values(self) -> dict[str, object]:
        return {
            "channel": self.channel,
            "category": self.category,
            "name": self.name,
            "not_before": self.not_before and self.not_before.isoformat(),
            "expires_at": self.expires_at and self.expires_at.isoformat(),
        }

    def begin(self, tenant: Tenant, now: datetime) -> Blast:
        """The blast of this draft: a new one that is being planned, or the one begun earlier with the same key.

        The tenant may send (`require_may_send`): the caller has asked. Raises Conflict `idempotency_key_reused`, and as
        `create`.
        """
        with transaction.atomic():
            claims = {} if self.key is None else {0: idempotency.Claim(self.key, self.digest(), self.older_digest)}
            earlier = idempotency.claim_keys(tenant.pk, OPERATION, claims)
            if earlier:
                return Blast.objects.get(pk=UUID(earlier[0]["blast_id"]), tenant=tenant)
            blast = self.create(tenant, now)
            if self.key is not None:
                idempotency.keep_answers(tenant.pk, OPERATION, {self.key: {"blast_id": str(blast.pk)}})
        return blast

    def create(self, tenant: Tenant, now: datetime) -> Blast:
        """A new blast, in the caller's transaction. What depends on the hour is asked only here: a blast that was made
        before is answered as it was then. Raises InvalidInput (times), Unavailable (no bucket)."""
        check_times(self.not_before, self.expires_at, now)
        require_bucket(self.channel)
        [content_id] = store_contents(tenant.pk, [self.document])
        return Blast.objects.create(
            tenant=tenant,
            content_id=content_id,
            name=self.name,
            channel=self.channel,
            category=self.category,
            rail=RAIL_OF[self.category],
            priority=PRIORITY_OF[self.category],
            not_before=self.not_before,
            expires_at=self.expires_at,
        )


def require_may_send(tenant: Tenant, domain: str, category: str, allowance: Allowance | None = None) -> None:
    """Raise Forbidden: `tenant_inactive`, `category_not_allowed`, `sender_domain_not_allowed`."""
    if not tenant.active:
        raise Forbidden("tenant_inactive", "This tenant is switched off. Ask the operator.")
    (allowance or allowance_of(tenant.pk)).require_blast(category)
    require_sender_domain(tenant.pk, domain)


def _name(raw: object) -> str:
    if not isinstance(raw, str) or len(raw) > MAX_NAME or UNSAFE.search(raw):
        raise InvalidInput("invalid_name", f"name must be one line of at most {MAX_NAME} characters.", field="name")
    return raw.strip()
