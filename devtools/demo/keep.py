"""`--keep`: everything goes on running after the run, to look around in; the addresses, and a login that is made for it.

Run as `python -m devtools.demo.keep` in the environment of the demo's stack (it needs Django, see `tenants`), it makes the
login and prints it as JSON, into a pipe.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping

from devtools.demo.display import Display
from devtools.demo.tenants import TENANTS, sender
from devtools.processes import CHECKOUT, Process
from devtools.stack import Stack

USER = "demo"
_LOOK_SECONDS = 0.5


def keep(stack: Stack, keys: Mapping[str, str], display: Display) -> None:
    """Return at Ctrl-C. A process that ends meanwhile is told of and not missed: somebody may want to see that."""
    password = json.loads(stack.python("-m", "devtools.demo.keep"))["password"]
    display.say()
    for text in _addresses(stack, keys, password):
        display.say(text)
    gone: set[Process] = set()
    try:
        while True:
            for process in set(stack.supervisor.processes) - gone:
                if not process.running:
                    gone.add(process)
                    display.say(f"{process.name} has ended with exit code {process.exit_code}. The others go on.")
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        display.say()


def _addresses(stack: Stack, keys: Mapping[str, str], password: str) -> list[str]:
    slug, key = next(iter(keys.items()))
    return [
        "All of it goes on running, with what the run left in it, until Ctrl-C:",
        f"  admin   {stack.web_url}/admin/   user {USER}, password {password}",
        f"  inbox   {stack.sandbox.url}/_sandbox/inbox   every e-mail that the provider took",
        f"  API     {stack.web_url}/v1/messaging/sends   {TENANTS[slug]}'s key: {key}",
        f"  logs    {_short(stack)}",
        "A code of your own, which is in the inbox a moment later:",
        f"  curl {stack.web_url}/v1/messaging/sends -H 'Authorization: Bearer {key}' \\",
        f"    -H 'Content-Type: application/json' -H 'Idempotency-Key: mine-1' -d '{_example(slug)}'",
    ]


def _example(slug: str) -> str:
    body = {
        "category": "transactional",
        "to": "you@inbox.example",
        "from": sender(slug),
        "subject": "Your code",
        "text": "123456",
    }
    return json.dumps(body)


def _short(stack: Stack) -> str:
    logs = stack.supervisor.logs
    return str(logs.relative_to(CHECKOUT) if logs.is_relative_to(CHECKOUT) else logs)


def make_login() -> str:
    """A superuser in the demo's own database; returns its password, which is kept nowhere."""
    from django.contrib.auth import get_user_model

    password = secrets.token_urlsafe(12)
    get_user_model()._default_manager.create_superuser(username=USER, password=password)
    return password


if __name__ == "__main__":
    import django

    django.setup()
    print(json.dumps({"password": make_login()}))
