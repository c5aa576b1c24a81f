"""manage.py clock"""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections

from core.db.cursor import require_session
from core.telemetry.redis_client import quick_client, refuse_cluster
from messaging.clock import BEAT_SECONDS, run_once

log = logging.getLogger(__name__)


class Command(BaseCommand):
    help = (
        "Run the clock: every half second, what is due becomes due, what has run out expires, rails with work and an"
        " empty queue get a ticket, batches whose worker vanished are handed to the workers. Run one; a second does no"
        " harm. SIGTERM or Ctrl-C ends it after the beat in hand."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="one beat, then exit (prints what it did)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            refuse_cluster(quick_client())
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        require_session()
        if options["once"]:
            beat = run_once()
            for name, rows in beat.moved.items():
                self.stdout.write(f"{name}: {rows}")
            if beat.failed:
                raise SystemExit(f"failed: {', '.join(beat.failed)}")
            return
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        log.info("clock_started")
        beats = 0
        while not stop.is_set():
            beat = run_once(beats)
            beats += 1
            close_old_connections()
            if any(beat.moved.values()):
                log.debug("beat", extra={**beat.moved, "seconds": round(beat.seconds, 3)})
            stop.wait(max(0.0, BEAT_SECONDS - beat.seconds))
        log.info("clock_stopped", extra={"beats": beats})
