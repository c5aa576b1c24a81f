"""Planning a blast: from one content and a list of recipients to a million rows of the ledger."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.models import Tenant
from messaging.channels.email import compile_document
from messaging.domain.errors import InvalidInput, NotFound, TooLarge
from messaging.domain.lifecycle import BlastState
from messaging.domain.rails import Category, Channel
from messaging.ledger.contents import compiled_content
from messaging.ledger.uploads import Counts, finish_upload, leave_upload, open_upload
from messaging.models import Blast, BlastReject
from messaging.planner.draft import Draft, require_may_send
from messaging.planner.encode import Encoder
from messaging.planner.fill import fill
from messaging.planner.prepare import prepare
from messaging.planner.results import OnProgress, PlanResult, Progress
from messaging.planner.rows import Row
from messaging.planner.sources import Recipients, open_source
from messaging.services.launch import cancel_empty_blast, launch_blast

log = logging.getLogger(__name__)

#: The number of the list that a plan is made from. A later one is appended through `planner.append`.
_UPLOAD = 1


def plan_blast(
    tenant: Tenant,
    *,
    recipients: Recipients,
    from_: object,
    subject: object,
    html: object = None,
    text: object = None,
    reply_to: object = None,
    headers: object = None,
    category: object = Category.MARKETING,
    channel: object = Channel.EMAIL,
    name: object = "",
    not_before: object = None,
    expires_at: object = None,
    idempotency_key: object = None,
    launch: bool = True,
    progress: OnProgress | None = None,
) -> PlanResult:
    """Record one send for each of `recipients`, and (unless `launch` is False) let them be sent.

    `recipients` are mappings `{"to": …, "variables": {…}}`, or a CSV file (its path, or the open file): see
    `planner.csv_source`. The list is read once, in chunks, each committed with its progress; memory does not grow with
    it. Nothing is sent before the launch. An address that is there twice is one send. A row that cannot be sent to is
    rejected, with its line and a reason (`BlastReject`), and the rest goes on; if none is left, the blast is cancelled.

    What ends between two chunks (a crash, an exception of `recipients` or of `progress`) leaves a blast that is
    `planning`. Resume it with `resume_planning`, or by the same call if it has an `idempotency_key`; the list must be the
    same. The same key after the launch answers the same result; with another content or other options: Conflict.

    Raises `messaging.domain.errors.MessagingError`. InvalidInput, Forbidden, TooLarge and Unavailable come before anything is
    stored, but for `no_valid_recipients` and for a stream that stops being UTF-8 midway. Conflict: see `ledger.uploads`,
    `planner.fill`. Inside the caller's `atomic()` all of it belongs to his transaction.
    """
    now = timezone.now()
    draft = Draft.parse(
        from_=from_,
        subject=subject,
        html=html,
        text=text,
        reply_to=reply_to,
        headers=headers,
        category=category,
        channel=channel,
        name=name,
        not_before=not_before,
        expires_at=expires_at,
        idempotency_key=idempotency_key,
    )
    require_may_send(tenant, draft.document.sender_domain, draft.category)
    with open_source(recipients) as source:
        encoder, rows = prepare(compile_document(draft.document), source, now)
        blast = draft.begin(tenant, now)
        if blast.state != BlastState.PLANNING:
            return PlanResult.of(blast, replayed=True)
        return _plan(blast, encoder, rows, source.total, launch, progress)


def resume_planning(
    tenant: Tenant,
    blast_id: UUID,
    *,
    recipients: Recipients,
    launch: bool = True,
    progress: OnProgress | None = None,
) -> PlanResult:
    """Go on with an interrupted plan, from its own list. Content and options are those it was begun with.

    A blast that was launched meanwhile is answered as it is. Raises as `plan_blast`, and NotFound.
    """
    now = timezone.now()
    blast = Blast.objects.select_related("content").filter(pk=blast_id, tenant=tenant).first()
    if blast is None:
        raise NotFound("unknown_blast", "This tenant has no such blast.")
    require_may_send(tenant, blast.content.from_domain, blast.category)
    if blast.state != BlastState.PLANNING:
        return PlanResult.of(blast, replayed=True)
    with open_source(recipients) as source:
        encoder, rows = prepare(compiled_content(blast.content).template, source, now)
        return _plan(blast, encoder, rows, source.total, launch, progress)


def _plan(
    blast: Blast, encoder: Encoder, rows: Iterator[Row], total: int | None, launch: bool, progress: OnProgress | None
) -> PlanResult:
    def tell(counts: Counts) -> None:
        if progress is not None:
            progress(Progress(blast.pk, counts.rows, counts.planned, counts.duplicates, counts.rejected, total))

    with transaction.atomic():  # waits for a chunk that a killed planner's connection still has in hand
        upload = open_upload(blast.pk, _UPLOAD, join=True)
    try:
        counts = fill(upload, rows, encoder, tell)
    except BaseException as error:
        leave_upload(upload)
        if isinstance(error, TooLarge):  # it will be next time, too
            cancel_empty_blast(blast, error.code)
        raise
    finish_upload(upload)
    log.info(
        "blast_planned",
        extra={
            "blast": blast.pk,
            "tenant": blast.tenant_id,
            "rows": counts.rows,
            "planned": counts.planned,
            "duplicates": counts.duplicates,
            "rejected": counts.rejected,
        },
    )
    if not counts.planned and cancel_empty_blast(blast):
        raise _no_valid_recipients(blast, counts)
    blast = launch_blast(blast.pk) if launch else Blast.objects.get(pk=blast.pk)
    return PlanResult.of(blast)


def _no_valid_recipients(blast: Blast, counts: Counts) -> InvalidInput:
    first = BlastReject.objects.filter(blast=blast).order_by("line").first()
    why = f" The first, line {first.line}: {first.reason}." if first else ""
    return InvalidInput(
        "no_valid_recipients",
        f"None of the {counts.rows:,} rows can be sent to.{why} Blast {blast.pk} was cancelled and nothing is sent."
        " Correct the list and plan it again.",
        field="recipients",
    )
