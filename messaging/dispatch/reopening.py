"""A batch whose lease has run out: taken over, and rebuilt to the bytes that it was."""

from __future__ import annotations

import hashlib
import logging
from uuid import UUID

from django.db import transaction

from core.db.faults import place_of
from core.security.crypto import SealError, UnknownKey
from messaging.channels.email import RenderError
from messaging.dispatch.preparing import render
from messaging.ledger import rebind, record, recover
from messaging.ledger.batch import Bound, Hopeless
from messaging.ledger.claim import LEASE
from messaging.ledger.contents import UNKNOWN_KEY, Contents, Unreadable
from messaging.ledger.record import Failure
from messaging.ledger.recover import LAST_UNANSWERED, Recovered
from messaging.providers.base import Adapter, Confirmation, Item

log = logging.getLogger(__name__)

#: Seconds until somebody else tries, when this process lacks a key or meets a bug of its own.
_ANOTHER_TRIES = 15.0


def take_over(batch: UUID) -> Recovered | None:
    """Take over a batch whose lease has run out. None: somebody else was faster, or is at it."""
    with transaction.atomic():
        return recover.take_over(batch)


def reopen_batch(adapter: Adapter, recovered: Recovered) -> Bound | Hopeless | None:
    """Rebuild its bytes. None: it cannot be done here, now; another try follows."""
    if adapter.confirmation is Confirmation.AT_MOST_ONCE:
        return _hopeless(recovered, "cannot_be_repeated", "The provider may have it, and would send it again.")
    if recovered.too_late:
        return _hopeless(recovered, "replay_too_late", "Too old to be repeated safely.")
    if recovered.unanswered >= LAST_UNANSWERED:
        return _hopeless(recovered, "kills_worker", "Every worker that had it in hand ended before it had an answer.")
    if adapter.confirmation is Confirmation.VERIFIABLE:
        return _bound(recovered, b"", settles_in=LEASE + adapter.settle_seconds - recovered.age)
    found = _items(recovered)
    if isinstance(found, Failure):
        _keep_for_another(recovered, found)
        return None
    try:
        body = adapter.encode(found) if len(found) == len(recovered.sends) and found else None
    except Exception as error:  # noqa: BLE001 — a bug here must not decide about a batch that may have been sent
        _keep_for_another(recovered, _bug(recovered, error))
        return None
    if body is None:
        return _hopeless(recovered, "not_reproducible", "It does not render as it did.")
    if hashlib.sha256(body).digest() != recovered.digest:
        return _hopeless(recovered, "digest_differs", "It does not render to the bytes it was.")
    return _bound(recovered, body)


def _items(recovered: Recovered) -> list[Item] | Failure:
    """As many as there are sends, less if some do not render any more. A Failure: they cannot be rendered here."""
    contents = Contents(send.content for send in recovered.sends)
    items: list[Item] = []
    for send in recovered.sends:
        try:
            content = contents[send.content]
            if not isinstance(content, Unreadable):
                items.append(render(send, content, recovered.rendered_at))
            elif content.code == UNKNOWN_KEY:
                return Failure(UNKNOWN_KEY, "It cannot be read here.")
        except UnknownKey:
            return Failure(UNKNOWN_KEY, "It cannot be read here.")
        except (RenderError, SealError):
            continue
        except Exception as error:  # noqa: BLE001
            return _bug(recovered, error)
    return items


def _bug(recovered: Recovered, error: Exception) -> Failure:
    log.error(
        "batch_not_reopened", extra={"batch": recovered.id, "error": type(error).__name__, "place": place_of(error)}
    )
    return Failure("cannot_be_prepared", "An error of the platform's own; its operator has been told.")


def _keep_for_another(recovered: Recovered, why: Failure) -> None:
    with transaction.atomic():
        record.keep_bound(recovered.id, recovered.fence, _ANOTHER_TRIES, why)


def _hopeless(recovered: Recovered, code: str, detail: str) -> Hopeless:
    lost = recovered.last_error == rebind.CODE  # which tells more
    return Hopeless(recovered.id, recovered.fence, Failure(rebind.CODE if lost else code, detail))


def _bound(recovered: Recovered, body: bytes, settles_in: float | None = None) -> Bound:
    return Bound(
        recovered.id,
        recovered.fence,
        recovered.attempts,
        body,
        recovered.idempotency_key,
        tuple(recovered.sends),
        replay=True,
        last_error=recovered.last_error,
        settles_in=settles_in,
        server=recovered.server,
    )
