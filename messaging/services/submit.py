"""Submit: from a caller's words to rows of the ledger, and a ticket after the commit.

`submit` and `submit_many` join the transaction they are called in: nothing is sent before the caller's own commit, and
nothing is left behind by its rollback. Everything is validated before the first row is written, except what depends on
the hour: a request that was made before is answered as it was then, also when it would come too late today.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.models import Tenant
from core.security.crypto import fingerprint, keyed_digest
from core.security.hashing import canonical_json
from core.security.ids import new_id
from messaging.channels.email import Document, compile_document
from messaging.channels.email.address import Address, parse_recipient
from messaging.channels.sealing import seal_recipient
from messaging.channels.templates.variables import validate_variables
from messaging.domain.errors import Forbidden, InvalidInput, TooLarge, Unavailable
from messaging.domain.lifecycle import SendStatus
from messaging.domain.rails import PRIORITY_OF, RAIL_OF, Category, Channel, Rail
from messaging.ledger import buckets, idempotency
from messaging.ledger.contents import store_contents
from messaging.ledger.insert import NewSend, insert_sends
from messaging.providers.registry import adapter_for
from messaging.services.allowances import Allowance, allowance_of
from messaging.services.sender_domains import require_sender_domains
from messaging.services.tickets import send_ticket

#: How far ahead a send may be scheduled, and how long it may stay valid.
MAX_AHEAD = timedelta(days=365)
#: Sends that one `submit_many` may hold: one transaction, one answer.
MAX_MANY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SendRequest:
    """What a caller says. Values are as they came (any type): `submit` checks them. Its `repr` shows none of them."""

    to: object
    from_: object
    subject: object
    html: object = None
    text: object = None
    category: object = Category.TRANSACTIONAL
    channel: object = Channel.EMAIL
    reply_to: object = None
    headers: object = None
    variables: object = None
    not_before: object = None
    expires_at: object = None
    idempotency_key: object = None
    literal: bool = False

    def digest(self) -> bytes:
        """Equal for equal requests. The idempotency key is what they are compared under, not part of it."""
        return idempotency.digest_of(
            self._values(), {f.name: f.default for f in fields(self) if f.default is not MISSING}
        )

    def older_digest(self) -> bytes:
        """See `idempotency.Claim.older`."""
        values = self._values()
        return keyed_digest(canonical_json({name: values[name] for name in _IN_OLDER_DIGESTS}))

    def _values(self) -> dict[str, object]:
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "idempotency_key"}


#: All fields of that release, given or not.
_IN_OLDER_DIGESTS = (
    *("to", "from_", "subject", "html", "text", "category", "channel", "reply_to", "headers", "variables"),
    *("not_before", "expires_at", "literal"),
)


def _plain(value: object) -> object:
    """The few values that a valid request may hold and JSON does not know."""
    if isinstance(value, datetime):
        return str(value)
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a request. `replayed`: it had been made before, and this is what was answered then."""

    id: UUID
    status: SendStatus
    channel: Channel
    category: Category
    rail: Rail
    created_at: datetime
    replayed: bool = field(default=False, compare=False)

    def as_json(self) -> dict[str, str]:
        return {
            "id": str(self.id),
            "status": self.status,
            "channel": self.channel,
            "category": self.category,
            "rail": self.rail,
            "created_at": self.created_at.isoformat(),
        }

    @classmethod
    def from_json(cls, answer: Mapping[str, str], *, replayed: bool) -> Submitted:
        return cls(
            id=UUID(answer["id"]),
            status=SendStatus(answer["status"]),
            channel=Channel(answer["channel"]),
            category=Category(answer["category"]),
            rail=Rail(answer["rail"]),
            created_at=datetime.fromisoformat(answer["created_at"]),
            replayed=replayed,
        )


@dataclass(frozen=True, slots=True)
class _Valid:
    channel: Channel
    category: Category
    to: Address
    document: Document
    variables: dict[str, Any]
    not_before: datetime | None
    expires_at: datetime | None
    claim: idempotency.Claim | None


def submit(
    tenant: Tenant,
    *,
    to: object,
    from_: object,
    subject: object,
    html: object = None,
    text: object = None,
    category: object = Category.TRANSACTIONAL,
    channel: object = Channel.EMAIL,
    reply_to: object = None,
    headers: object = None,
    variables: object = None,
    not_before: object = None,
    expires_at: object = None,
    idempotency_key: object = None,
    literal: bool = False,
) -> Submitted:
    """Record one send of `tenant`. Returns as soon as it is in the ledger, long before it is sent.

    `subject`, `html`, `text` and header values may be Liquid, filled from `variables`; with `literal` they go out as
    they stand. The category decides the rail. `not_before` and `expires_at` are aware datetimes. The same
    `idempotency_key` with the same request answers what was answered the first time and sends nothing more.

    Raises `messaging.domain.errors.MessagingError` (InvalidInput, Forbidden, Conflict, TooLarge, Unavailable); then nothing was
    stored. Redis away is not an error: the send goes out when it is back.
    """
    request = SendRequest(
        to=to,
        from_=from_,
        subject=subject,
        html=html,
        text=text,
        category=category,
        channel=channel,
        reply_to=reply_to,
        headers=headers,
        variables=variables,
        not_before=not_before,
        expires_at=expires_at,
        idempotency_key=idempotency_key,
        literal=literal,
    )
    return submit_many(tenant, [request])[0]


def submit_many(
    tenant: Tenant, requests: Iterable[SendRequest | Mapping[str, Any]], allowance: Allowance | None = None
) -> list[Submitted]:
    """Record up to 10,000 sends in one transaction: all of them, or none. Answers in the order of `requests`.

    A request is a `SendRequest` or a mapping with the keyword arguments of `submit`. The error of request i has
    `field` prefixed with `[i].` if there is more than one. `allowance`: the categories, where they are not just the tenant's.
    """
    given = [_as_request(request) for request in requests]
    if len(given) > MAX_MANY:
        raise InvalidInput("too_many_sends", f"Submit at most {MAX_MANY:,} sends at once, or plan a blast.")
    if not given:
        return []
    if not tenant.active:
        raise Forbidden("tenant_inactive", "This tenant is switched off. Ask the operator.")
    now = timezone.now()
    valid: list[_Valid] = []
    for i, request in enumerate(given):
        with _named(i, len(given)):
            valid.append(_validate(request, now))
    with transaction.atomic():
        return _store(tenant.pk, valid, now, allowance)


@contextmanager
def _named(i: int, count: int) -> Iterator[None]:
    """The error of one among many says which one."""
    try:
        yield
    except (InvalidInput, TooLarge) as error:
        if count > 1:
            error.field = f"[{i}].{error.field}" if error.field else f"[{i}]"
        raise


def _as_request(request: SendRequest | Mapping[str, Any]) -> SendRequest:
    if isinstance(request, SendRequest):
        return request
    if unknown := request.keys() - set(SendRequest.__slots__):
        raise InvalidInput("unknown_field", f"Unknown field: {sorted(map(str, unknown))[0][:60]}.")
    if missing := {"to", "from_", "subject"} - request.keys():
        raise InvalidInput("missing_field", f"Missing field: {sorted(missing)[0]}.", field=sorted(missing)[0])
    return SendRequest(**request)


def _validate(request: SendRequest, now: datetime) -> _Valid:
    channel, category = parse_channel(request.channel), parse_category(request.category)
    document = Document.parse(
        from_=request.from_,
        subject=request.subject,
        html=request.html,
        text=request.text,
        reply_to=request.reply_to,
        headers=request.headers,
        literal=request.literal,
    )
    variables = validate_variables({} if request.variables is None else request.variables)
    # Rendered once now, so that the caller hears of a bad template and not a log file.
    compile_document(document).check(variables, now)
    return _Valid(
        channel=channel,
        category=category,
        to=parse_recipient(request.to),
        document=document,
        variables=variables,
        not_before=parse_time(request.not_before, "not_before"),
        expires_at=parse_time(request.expires_at, "expires_at"),
        claim=_claim(request),
    )


def _claim(request: SendRequest) -> idempotency.Claim | None:
    key = idempotency.parse_key(request.idempotency_key)
    return None if key is None else idempotency.Claim(key, request.digest(), request.older_digest)


def parse_channel(raw: object) -> Channel:
    """The channel, if it exists here: one without a provider does not."""
    channel = next((c for c in Channel if c == raw), None)
    if channel is None or adapter_for(channel) is None:
        raise InvalidInput("unknown_channel", "There is no such channel here. Use email.", field="channel")
    return channel


def require_bucket(channel: Channel) -> None:
    """Raise Unavailable if the channel's provider has no global bucket: nothing would be sent through it."""
    adapter = adapter_for(channel)
    if adapter is None or buckets.limits_of(adapter.name) is None:
        raise Unavailable(
            "provider_without_bucket",
            "The provider of this channel has no global rate limit bucket, so nothing is sent through it."
            " The operator must add one in the admin (Rate limit buckets).",
            retry_after=60,
        )


def parse_category(raw: object) -> Category:
    for category in Category:
        if category == raw:
            return category
    raise InvalidInput("unknown_category", "category must be transactional, product or marketing.", field="category")


def parse_time(raw: object, field: str) -> datetime | None:
    """An aware datetime, or ISO 8601 text with an offset. None stays None."""
    if raw is None:
        return None
    value = raw
    if isinstance(raw, str):
        try:
            value = datetime.fromisoformat(raw)
        except ValueError:
            value = None
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidInput(
            "invalid_time", f"{field} must be a time with an offset, such as 2030-01-31T09:00:00+01:00.", field=field
        )
    if not 1970 <= value.year <= 9000:  # outside of it, arithmetic on times overflows
        raise InvalidInput("invalid_time", f"{field} is not a year that mail is sent in.", field=field)
    return value


def check_times(not_before: datetime | None, expires_at: datetime | None, now: datetime) -> None:
    if not_before and not_before > now + MAX_AHEAD:
        raise InvalidInput("too_far_ahead", "not_before may be at most 365 days ahead.", field="not_before")
    if expires_at and expires_at <= max(now, not_before or now):
        raise InvalidInput(
            "expires_too_early", "expires_at must be later than now and than not_before.", field="expires_at"
        )


def _store(tenant_id: int, valid: Sequence[_Valid], now: datetime, allowance: Allowance | None) -> list[Submitted]:
    ids = [new_id() for _ in valid]
    keys = {i: v.claim for i, v in enumerate(valid) if v.claim is not None}
    earlier = idempotency.claim_keys(tenant_id, "sends", keys)
    fresh = [i for i in range(len(valid)) if i not in earlier]
    # What may have changed since the first request is asked of fresh ones only: a repetition is answered as it was.
    for i in fresh:
        with _named(i, len(valid)):
            check_times(valid[i].not_before, valid[i].expires_at, now)
    for channel in {valid[i].channel for i in fresh}:
        require_bucket(channel)
    if fresh:
        (allowance or allowance_of(tenant_id)).require({valid[i].category for i in fresh})
    require_sender_domains(tenant_id, {valid[i].document.sender_domain for i in fresh})
    content_ids = store_contents(tenant_id, [valid[i].document for i in fresh])
    rows = [
        NewSend(
            id=ids[i],
            content_id=content_id,
            channel=valid[i].channel,
            category=valid[i].category,
            rail=RAIL_OF[valid[i].category],
            priority=PRIORITY_OF[valid[i].category],
            not_before=valid[i].not_before,
            expires_at=valid[i].expires_at,
            fingerprint=fingerprint(valid[i].to.canonical),
            sealed=seal_recipient(ids[i], valid[i].to.wire, valid[i].variables),
        )
        for i, content_id in zip(fresh, content_ids, strict=True)
    ]
    written = insert_sends(tenant_id, rows)
    answers: dict[int, Submitted] = {}
    for i, row in zip(fresh, rows, strict=True):
        status, created_at = written[row.id]
        answers[i] = Submitted(row.id, status, row.channel, row.category, row.rail, created_at)
    idempotency.keep_answers(tenant_id, "sends", {keys[i].key: answers[i].as_json() for i in keys if i in answers})
    for channel, rail in sorted({(a.channel, a.rail) for a in answers.values() if a.status is SendStatus.QUEUED}):
        transaction.on_commit(partial(send_ticket, channel, rail))
    return [answers[i] if i in answers else Submitted.from_json(earlier[i], replayed=True) for i in range(len(valid))]
