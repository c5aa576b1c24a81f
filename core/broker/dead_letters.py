"""Actors that die of a bug: one dead letter for each bug, with its traceback and how often it was met.

A middleware of the broker. It writes where the code was and what kind of error it met, never an argument and never the
error's text: both may hold what belongs to a person. What passes by itself (`core.db.faults`) is no bug and leaves no letter.
The work itself is not kept here: a ticket carries none (the ledger still has it), and a job stays open in
`core_processed_jobs` under its key, to be asked for again once the bug is gone.
"""

from __future__ import annotations

import hashlib
import logging
import traceback
from typing import Any

import dramatiq
from django.db import Error, transaction
from dramatiq.broker import Broker, MessageProxy

from core.db.cursor import ledger_cursor
from core.db.faults import is_transient, place_of, short_path

log = logging.getLogger(__name__)

REASON = "actor_died"
#: What can be done with such a letter, for whoever reads it.
WHAT_TO_DO = (
    "Correct the bug (the traceback says where) and deploy. A ticket of a rail carried no work: the ledger has it, and it is"
    " taken up by itself. A job (core.jobs) has stayed open under its key: ask for it again, by the same call, and it is done"
    " once. The message of any other actor is gone with its arguments: whoever sent it sends it again. The letter stays; if it"
    " is not met any more (times, last), it is over."
)
#: The innermost frames of an error, and the errors that led to it, that are told: enough to find the place, bounded in any case.
_FRAMES, _CAUSES = 20, 5
_MAX_TRACEBACK, _MAX_DETAIL = 8_000, 500

# In a crash loop this is one row that is written again and again.
_RECORD = """
INSERT INTO core_dead_letters AS d
    (channel, reason, detail, traceback, fingerprint, times, redriven, created_at, last_at)
VALUES ('', %(reason)s, %(detail)s, %(traceback)s, %(fingerprint)s, 1, 0, clock_timestamp(), clock_timestamp())
ON CONFLICT (fingerprint) DO UPDATE SET times = d.times + 1, last_at = excluded.last_at
"""


class ActorDeadLetters(dramatiq.Middleware):
    """Stands after what closes connections in the list, so that it is called before it."""

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        if exception is None or is_transient(exception) or _expected(broker, message, exception):
            return
        try:
            record_death(message.actor_name, exception)
        except Error as error:
            # Whatever is met again is recorded again.
            log.error("dead_letter_not_written", extra={"actor": message.actor_name, "error": type(error).__name__})


def _expected(broker: Broker, message: MessageProxy, exception: BaseException) -> bool:
    """The actor says itself that it may raise this."""
    actor = broker.actors.get(message.actor_name)
    throws: Any = message.options.get("throws") or (actor.options.get("throws") if actor else None)
    return bool(throws) and isinstance(exception, throws)


def record_death(actor: str, error: BaseException) -> None:
    """One dead letter for each place and kind of error in an actor; met again, it is counted. Raises django.db.Error."""
    text, place = _told(error)
    with transaction.atomic(), ledger_cursor() as sql:
        sql.run(
            _RECORD,
            {
                "reason": REASON,
                "detail": f"{actor}: {type(error).__qualname__} at {place}"[:_MAX_DETAIL],
                "traceback": text,
                "fingerprint": hashlib.sha256(f"{actor}\n{text}".encode()).hexdigest(),
            },
        )


def _told(error: BaseException) -> tuple[str, str]:
    """The traceback of `error` and of what led to it, that one first, as Python tells it but without texts; and its place."""
    parts: list[str] = []
    current: BaseException | None = error
    for _ in range(_CAUSES):
        if current is None:
            break
        frames = traceback.extract_tb(current.__traceback__)[-_FRAMES:]
        lines = [f"  {short_path(f.filename)}:{f.lineno} in {f.name}\n    {f.line or ''}" for f in frames]
        parts.append("\n".join([*lines, type(current).__qualname__]))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    text = "\n\nled to\n\n".join(reversed(parts))
    return text[-_MAX_TRACEBACK:].replace("\x00", ""), place_of(error)
