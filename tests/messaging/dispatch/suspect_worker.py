"""A worker that serves tickets as fast as it can and dies, by −9, where the address of a certain recipient is looked into:
`python -m tests.messaging.dispatch.suspect_worker WHERE`, WHERE being `open` (rendering) or `record` (after the answer)."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import django

django.setup()

from messaging.channels.sealing import open_recipient  # noqa: E402
from messaging.dispatch import preparing, run_ticket, turn  # noqa: E402
from messaging.domain.rails import Channel, Rail  # noqa: E402
from messaging.providers import registry  # noqa: E402
from messaging.providers.resend.adapter import ResendAdapter  # noqa: E402

POISON = "poison@recipients.org"


def _die_if(found: bool) -> None:
    if found:
        os.kill(os.getpid(), signal.SIGKILL)


def _open(*args: Any) -> Any:
    opened = open_recipient(*args)
    _die_if(opened[0] == POISON)
    return opened


_record = turn._record


def _recording(line: Any, grant: Any, bound: Any, *args: Any, **named: Any) -> Any:
    _die_if(POISON.encode() in bound.body)
    return _record(line, grant, bound, *args, **named)


def main() -> None:
    registry.adapters()[Channel.EMAIL] = ResendAdapter(api_key="re_sandbox", base_url=os.environ["RESEND_BASE_URL"])
    if sys.argv[1] == "open":
        preparing.open_recipient = _open
    else:
        turn._record = _recording
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while os.getppid() > 1:
        if run_ticket(Channel.EMAIL, Rail.TRANSACTIONAL) is None:
            time.sleep(0.02)


if __name__ == "__main__":
    main()
