"""Appending a list of recipients to a blast that is being planned: one upload after another, then the launch.

An upload is looked at twice: before its first byte is read (is there such a blast, does it take recipients, was this
done before?), and again, for good, when its first rows are known to fit the template. So a list that is refused leaves
nothing behind, and one that comes at the wrong time is not read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.models import Tenant
from core.security.crypto import keyed_digest
from core.security.hashing import canonical_json
from messaging.domain.errors import Conflict, InvalidInput, MessagingError, NotFound
from messaging.domain.lifecycle import BlastState
from messaging.ledger import idempotency
from messaging.ledger.contents import compiled_content
from messaging.ledger.uploads import Counts, Upload, finish_upload, leave_upload, open_upload
from messaging.models import Blast, BlastReject, IdempotencyKey
from messaging.planner.draft import require_may_send
from messaging.planner.encode import Encoder
from messaging.planner.fill import compare, fill
from messaging.planner.prepare import prepare
from messaging.planner.rows import Row
from messaging.planner.sources import Source
from messaging.services.allowances import Allowance
from messaging.services.control import lock_blast
from messaging.services.launch import launch_blast

log = logging.getLogger(__name__)

OPERATION = "blast_uploads"  # of its idempotency keys

#: Opens the list. Called at most once, and only if it is to be read.
OpenSource = Callable[[], AbstractContextManager[Source]]


@dataclass(frozen=True, slots=True)
class Appended:
    """What came of one upload: rows = added + duplicates + rejected. `state` is the blast's.

    `duplicates` were in the blast already, or stand twice in this list. `replayed`: this is what was answered before.
    """

    blast_id: UUID
    upload: int
    rows: int
    added: int
    duplicates: int
    rejected: int
    state: BlastState
    replayed: bool = field(default=False, compare=False)

    def as_json(self) -> dict[str, str | int]:
        return {
            "blast_id": str(self.blast_id),
            "upload": self.upload,
            "rows": self.rows,
            "added": self.added,
            "duplicates": self.duplicates,
            "rejected": self.rejected,
            "state": self.state.value,
        }

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Self:
        values = dict(answer) | {"blast_id": UUID(answer["blast_id"]), "state": BlastState(answer["state"])}
        return cls(**values, replayed=True)


def append_recipients(
    tenant: Tenant,
    blast_id: UUID,
    *,
    source: OpenSource,
    launch: bool = False,
    idempotency_key: object = None,
    allowance: Allowance | None = None,
) -> Appended:
    """Read a list into a blast that is `planning`, in chunks, each committed with its counts; with `launch`, let the
    blast be sent when the list has ended. A recipient that the blast has is a duplicate: nothing is added twice.

    The same key again answers the same, and goes on where it stopped if the list was cut. Either way its rows are read
    again and checked to be the same: those of another list would be left out without a word. Without a key, a repeated
    list is an upload of its own.

    Raises NotFound, Forbidden, Conflict (`blast_launched`, `blast_cancelled`, `upload_in_progress`,
    `idempotency_key_reused`, `recipients_differ`) and InvalidInput: as `prepare` before anything is stored; from the
    list itself, if it breaks off, stops being readable, or is `too_many_rejected`; and `no_valid_recipients` for one
    without a good row, whose rejected rows are kept. Whatever is raised, nothing was launched, and chunks that were
    committed stay.
    """
    key = idempotency.parse_key(idempotency_key)
    claim = None if key is None else idempotency.Claim(key, _digest(blast_id, launch))
    with transaction.atomic():
        entered = _enter(tenant, blast_id, claim)
        transaction.set_rollback(True)  # only to look
    blast = Blast.objects.select_related("content").get(pk=blast_id)
    if isinstance(entered, Upload):
        require_may_send(tenant, blast.content.from_domain, blast.category, allowance)
    with source() as opened:
        encoder, rows = prepare(compiled_content(blast.content).template, opened, timezone.now())
        if isinstance(entered, Upload):
            with transaction.atomic():
                entered = _enter(tenant, blast_id, claim)
        if isinstance(entered, Appended):
            _compare(entered, rows, encoder)
            return entered
        try:
            fill(entered, rows, encoder, lambda _: None)
            done = _finish(tenant, entered, claim, launch)
        except MessagingError as error:
            leave_upload(entered)
            raise _told(error, entered) from error
        except BaseException:
            leave_upload(entered)
            raise
    log.info("blast_recipients", extra={"tenant": tenant.pk, "launch": launch, **done.as_json()})
    if done.rejected == done.rows:
        raise _no_valid_recipients(entered)
    return done


def _digest(blast_id: UUID, launch: bool) -> bytes:
    """What a key is held to. The list is not part of it: it is compared with what was read when it is resumed."""
    return keyed_digest(canonical_json({"blast": str(blast_id), "launch": launch}))


def _enter(tenant: Tenant, blast_id: UUID, claim: idempotency.Claim | None) -> Upload | Appended:
    """Open an upload in the caller's transaction, or find what it was answered before."""
    if not Blast.objects.select_for_update(no_key=True).filter(pk=blast_id, tenant=tenant).exists():
        raise NotFound("unknown_blast", "There is no such blast of yours.")
    earlier = idempotency.claim_keys(tenant.pk, OPERATION, {} if claim is None else {0: claim})
    if earlier and "rows" in earlier[0]:
        return Appended.from_json(earlier[0])
    upload = open_upload(blast_id, earlier[0]["upload"] if earlier else None)
    if claim is not None and not earlier:
        idempotency.keep_answers(
            tenant.pk, OPERATION, {claim.key: {"blast_id": str(blast_id), "upload": upload.number}}
        )
    return upload


def _compare(done: Appended, rows: Iterator[Row], encoder: Encoder) -> None:
    upload = Upload(done.blast_id, done.upload, Counts(done.rows, done.added, done.duplicates, done.rejected), None)
    try:
        compare(upload, rows, encoder)
    except Conflict as error:
        raise _told(error, upload) from error


def _finish(tenant: Tenant, upload: Upload, claim: idempotency.Claim | None, launch: bool) -> Appended:
    """End of list, launch and answer are one transaction: none of them is there without the others."""
    counts = upload.counts
    with transaction.atomic():
        blast = lock_blast(upload.blast_id)
        finish_upload(upload)
        good = counts.rejected < counts.rows
        if good and launch:
            blast = launch_blast(blast.pk)
        state = BlastState(blast.state)
        done = Appended(blast.pk, upload.number, counts.rows, counts.planned, counts.duplicates, counts.rejected, state)
        if claim is not None and good:
            idempotency.keep_answers(tenant.pk, OPERATION, {claim.key: done.as_json()})
        elif claim is not None:  # whoever corrects the list may use the key again
            IdempotencyKey.objects.filter(tenant=tenant, operation=OPERATION, key=claim.key).delete()
    return done


def _no_valid_recipients(upload: Upload) -> InvalidInput:
    first = BlastReject.objects.filter(blast_id=upload.blast_id, upload=upload.number).order_by("line").first()
    why = f" The first, line {first.line}: {first.reason}." if first else ""
    return InvalidInput(
        "no_valid_recipients",
        f"None of the {upload.counts.rows:,} rows can be sent to.{why} The blast stays as it was: correct the list and"
        " send it again.",
        field="recipients",
    )


def _told(error: MessagingError, upload: Upload) -> MessagingError:
    """The error, with how far the list was read: who sent it can go on instead of wondering."""
    code, message = error.code, error.message
    if code == "planning_in_progress":
        code, message = "upload_in_progress", "Another upload to this blast has begun since. Let it finish."
    elif code == "recipients_differ":
        message = (
            "This idempotency key stands for another list: recipients that were read under it are missing, or others stand"
            " in their place. Send that list again, or this one under a key of its own."
        )
    elif upload.counts.rows and not isinstance(error, Conflict):
        message += f" {upload.counts.rows:,} rows of this upload were read and stay in the blast; nothing was launched."
        if code != "too_many_rejected":
            message += " Send the list again: nothing is added twice."
    return type(error)(code, message, field=error.field, retry_after=error.retry_after)
