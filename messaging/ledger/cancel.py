"""Cancelling one send that waits."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from core.db.cursor import ledger_cursor
from messaging.domain.errors import Conflict, NotFound
from messaging.domain.lifecycle import SendStatus, sources

#: A send that is bound to a batch is in a request already, or about to be: it is not called back.
CANCELLABLE = [status for status in sources(SendStatus.CANCELLED) if status != SendStatus.SENDING]

# Waits for a claim that holds the row, and then sees what it made of it; a claim steps over a row that is locked here.
_LOCK = "SELECT status FROM messaging_sends WHERE id = %(send)s AND tenant_id = %(tenant)s FOR UPDATE"
_CANCEL = """
UPDATE messaging_sends SET status = 'cancelled' WHERE id = %(send)s AND status = ANY (%(from)s::text[])
"""


def cancel_send(tenant_id: int, send_id: UUID) -> bool:
    """Cancel the tenant's send, if it waits. True: this call did it. False: it was cancelled before.

    When this has returned, the send is not sent (inside a caller's transaction: when that has committed). Raises NotFound
    (also for another tenant's send), and Conflict `not_cancellable` for one that is being sent or has ended.
    """
    with transaction.atomic(), ledger_cursor() as sql:
        found = sql.one(_LOCK, {"send": send_id, "tenant": tenant_id})
        if found is None:
            raise NotFound("not_found", "There is no such send of yours.")
        status = SendStatus(found[0])
        if status is SendStatus.CANCELLED:
            return False
        if sql.run(_CANCEL, {"send": send_id, "from": CANCELLABLE}) != 1:
            raise Conflict(
                "not_cancellable", f"The send is {status}: only one that is scheduled or queued can be cancelled."
            )
    return True
