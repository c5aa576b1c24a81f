"""Redrive: sending again what failed for good, or what was left ambiguous: same send, same content, a new attempt.

    messaging.redrive(send_ids=[…], by="ops")
    messaging.redrive(reason="attempts_exhausted", by="ops")
    messaging.redrive(blast=blast_id, by="ops", accept_duplicates_by="ops")

A failed send was not sent: to redrive it is safe. An ambiguous one may have been: it is redriven only if somebody accepts
that it arrives twice, and the ledger keeps who that was (`messaging.models.Redrive`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from django.db import transaction

from core.models import Tenant
from messaging.domain.errors import InvalidInput, NotFound
from messaging.domain.lifecycle import SendStatus
from messaging.ledger import redrive as ledger
from messaging.ledger.redrive import PAGE, Verdict
from messaging.models import Blast
from messaging.services.tickets import send_ticket

__all__ = ["Redriven", "Verdict", "redrive"]

log = logging.getLogger(__name__)
_LONGEST_NAME = 150


@dataclass(slots=True)
class Redriven:
    """What became of the sends that were asked for. `refused` counts by word, `examples` names one send for each."""

    moved: int = 0
    refused: dict[Verdict, int] = field(default_factory=dict)
    examples: dict[Verdict, UUID] = field(default_factory=dict)

    @property
    def looked_at(self) -> int:
        return self.moved + sum(self.refused.values())


def redrive(
    *,
    send_ids: Iterable[UUID] | None = None,
    blast: UUID | None = None,
    reason: str | None = None,
    tenant: Tenant | None = None,
    by: str = "",
    accept_duplicates_by: str = "",
    dry_run: bool = False,
    progress: Callable[[Redriven], None] = lambda _: None,
) -> Redriven:
    """Make sends due again: those with these ids, or the failed ones of a blast, or those that failed for a reason.

    Exactly one of the three; `tenant` narrows it down, and to him others' sends are unknown. With `accept_duplicates_by` (who)
    ambiguous sends are redriven, too. `by` (who) is kept for the failed ones. A send that waits, was sent, cancelled or has
    expired is left as it is and counted in `refused`: asked twice, or by two people at once, a send is redriven once.

    At most `PAGE` sends are changed in a transaction, and `progress` is called after each; what was done before an error
    stays done, and asking again does the rest. Inside the caller's `atomic()` all of it is the caller's, and tickets follow
    on commit. A finished blast is reopened. `dry_run`: nothing is changed, the counts are what would be done.

    Raises InvalidInput, and NotFound for a blast that does not exist (or is another tenant's).
    """
    if [send_ids is not None, blast is not None, reason is not None].count(True) != 1:
        raise InvalidInput("redrive_selection", "Name what to redrive: send ids, or a blast, or a reason.")
    if max(len(by), len(accept_duplicates_by)) > _LONGEST_NAME:
        raise InvalidInput("redrive_by", f"A name has at most {_LONGEST_NAME} characters.")
    acceptor = accept_duplicates_by.strip()
    done = Redriven()
    for page in _pages(send_ids, blast, reason, tenant):
        found = _step(page, tenant, by=by, acceptor=acceptor, dry_run=dry_run)
        for pk, verdict in found.items():
            if verdict is Verdict.MAY:
                done.moved += 1
            else:
                done.refused[verdict] = done.refused.get(verdict, 0) + 1
                done.examples.setdefault(verdict, pk)
        progress(done)
    if done.moved and not dry_run:
        log.warning("redriven", extra={"sends": done.moved, "accepted_duplicates": bool(acceptor)})
    return done


def _pages(
    send_ids: Iterable[UUID] | None, blast: UUID | None, reason: str | None, tenant: Tenant | None
) -> Iterator[list[UUID]]:
    """Ambiguous ones are looked at in any case: whoever does not accept duplicates should know that there are some."""
    owner = tenant.pk if tenant else None
    if send_ids is not None:
        return _chunks(send_ids)
    if blast is not None:
        if not Blast.objects.filter(pk=blast, **({"tenant": tenant} if tenant else {})).exists():
            raise NotFound("unknown_blast", "There is no such blast.")
        return itertools.chain(ledger.of_blast(blast, SendStatus.FAILED), ledger.of_blast(blast, SendStatus.AMBIGUOUS))
    assert reason is not None
    return itertools.chain(ledger.failed_because(reason, owner), ledger.ambiguous_because(reason, owner))


def _chunks(ids: Iterable[UUID]) -> Iterator[list[UUID]]:
    rest = iter(ids)
    while chunk := list(dict.fromkeys(itertools.islice(rest, PAGE))):
        yield chunk


def _step(ids: list[UUID], tenant: Tenant | None, *, by: str, acceptor: str, dry_run: bool) -> dict[UUID, Verdict]:
    owner, accept = tenant.pk if tenant else None, bool(acceptor)
    if not ids:
        return {}
    if dry_run:
        return ledger.verdicts(ids, owner, accept=accept)
    with transaction.atomic():
        ledger.lock(ids)
        found = ledger.verdicts(ids, owner, accept=accept)
        wanted = [pk for pk, verdict in found.items() if verdict is Verdict.MAY]
        moved = ledger.move(wanted, accept=accept, by=acceptor or by)
        for channel, rail in moved.rails:
            transaction.on_commit(partial(send_ticket, channel, rail))
    # Between the look and the step somebody else was faster.
    return found | dict.fromkeys(set(wanted) - moved.ids, Verdict.WAITING)
