"""A blast made by one request: its content, maybe its recipients, maybe its launch; all of it, or nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.models import Tenant
from messaging.channels.email import compile_document
from messaging.domain.errors import InvalidInput
from messaging.ledger import idempotency
from messaging.ledger.uploads import finish_upload, open_upload
from messaging.models import Blast, BlastReject
from messaging.planner.draft import Draft, require_may_send
from messaging.planner.encode import Encoder
from messaging.planner.fill import fill
from messaging.planner.prepare import prepare
from messaging.planner.rows import Row
from messaging.planner.sources import open_source
from messaging.services.allowances import Allowance
from messaging.services.launch import OPERATION, launch_blast

log = logging.getLogger(__name__)


def create_blast(
    tenant: Tenant,
    draft: Draft,
    *,
    recipients: Sequence[object] | None,
    launch: bool,
    digest: bytes,
    answer: Callable[[UUID], dict[str, Any]],
    allowance: Allowance | None = None,
) -> tuple[dict[str, Any], bool]:
    """Make the blast of `draft`: empty, or with `recipients` (mappings) planned and with `launch` launched.

    Returns what `answer(id of the blast)` says of it within the transaction, and whether it was said before: the key of
    the draft with an equal `digest` of the request answers the same; with another it is a Conflict. Twins wait for each
    other. Raises as `plan_blast`; then nothing at all was stored. For lists that fit into a request: they are one
    transaction. Longer ones are appended (`planner.append`).
    """
    now = timezone.now()
    template = compile_document(draft.document)
    with ExitStack() as stack:
        ready: tuple[Encoder, Iterator[Row]] | None = None
        if recipients is not None:
            ready = prepare(template, stack.enter_context(open_source(recipients)), now)  # type: ignore[arg-type]
        with transaction.atomic():
            claims = {} if draft.key is None else {0: idempotency.Claim(draft.key, digest)}
            earlier = idempotency.claim_keys(tenant.pk, OPERATION, claims)
            if earlier:
                return json.loads(earlier[0]["said"]), True
            require_may_send(tenant, draft.document.sender_domain, draft.category, allowance)
            blast = draft.create(tenant, now)
            if ready is not None:
                _plan(blast, *ready)
            if launch:
                launch_blast(blast.pk)
            said = answer(blast.pk)
            if draft.key is not None:
                # As text: the database would put the fields into another order.
                kept = {"blast_id": str(blast.pk), "said": json.dumps(said)}
                idempotency.keep_answers(tenant.pk, OPERATION, {draft.key: kept})
    log.info("blast_created", extra={"blast": blast.pk, "tenant": tenant.pk, "rail": blast.rail, "launch": launch})
    return said, False


def _plan(blast: Blast, encoder: Encoder, rows: Iterator[Row]) -> None:
    upload = open_upload(blast.pk)
    counts = fill(upload, rows, encoder, lambda _: None)
    finish_upload(upload)
    if not counts.planned:
        first = BlastReject.objects.filter(blast=blast).order_by("line").first()
        why = f" The first: {first.reason}." if first else ""
        raise InvalidInput(
            "no_valid_recipients",
            f"None of the {counts.rows:,} recipients can be sent to.{why} Nothing was stored.",
            field="recipients",
        )
