"""The end of planning: the blast begins to be sent, or is given up because there is nobody to send to."""

from __future__ import annotations

import logging
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from messaging.domain.errors import Conflict, InvalidInput
from messaging.domain.lifecycle import BlastState
from messaging.ledger.uploads import check_none_is_read
from messaging.models import Blast, IdempotencyKey
from messaging.services.control import lock_blast, make_due

log = logging.getLogger(__name__)

OPERATION = "blasts"  # of its idempotency keys
#: Why a blast is given up.
NO_RECIPIENTS = "no_valid_recipients"


def launch_blast(blast_id: UUID, *, tenant_id: int | None = None, again: bool = True) -> Blast:
    """Let a planned blast be sent: at once, or from its `not_before` on. Safe to repeat; a launched blast stays as it is
    (without `again`: Conflict `blast_launched`).

    Raises NotFound, InvalidInput `no_valid_recipients`, and Conflict: `blast_cancelled`, `upload_in_progress`.
    """
    with transaction.atomic():
        blast = lock_blast(blast_id, tenant_id)
        if blast.state == BlastState.CANCELLED:
            raise Conflict("blast_cancelled", "The blast was cancelled: it cannot be launched. Plan a new one.")
        if blast.state != BlastState.PLANNING:
            if not again:
                raise Conflict("blast_launched", f"The blast was launched before: it is {blast.state}.")
            return blast
        check_none_is_read(blast.pk)
        if not blast.planned:
            raise InvalidInput("no_valid_recipients", "The blast has no recipients yet: add some, then launch it.")
        blast.state = BlastState.RUNNING
        blast.launched_at = Now()
        blast.save(update_fields=["state", "launched_at"])
        make_due(blast)
    blast.refresh_from_db()
    log.info("blast_launched", extra={"blast": blast.pk, "tenant": blast.tenant_id, "planned": blast.planned})
    return blast


def cancel_empty_blast(blast: Blast, reason: str = NO_RECIPIENTS) -> bool:
    """Cancel a blast that was planned to its end and has no send. False if that is not what it is any more.

    Its idempotency key is released: whoever corrects the list may use it again. The blast stays, for its rejected rows.
    """
    with transaction.atomic():
        empty = Blast.objects.filter(pk=blast.pk, state=BlastState.PLANNING, planned=0)
        if not empty.update(state=BlastState.CANCELLED, reason=reason):
            return False
        keys = IdempotencyKey.objects.filter(tenant_id=blast.tenant_id, operation=OPERATION)
        keys.filter(answer__blast_id=str(blast.pk)).delete()
    log.info("blast_cancelled", extra={"blast": blast.pk, "tenant": blast.tenant_id, "reason": reason})
    return True
