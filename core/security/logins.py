"""Who guesses passwords is slowed, and told of; nobody is locked out for good.

After a few failures, of one account or from one address, the next attempt has to wait: a second, two, four … a minute. An
attempt that comes earlier is not looked at, so it neither tells anything nor makes the wait longer; and it is refused at once,
because a thread that sleeps is one of few. A quarter of an hour without a failure, and all is as before.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import redis
from django import forms
from django.contrib.admin.forms import AdminAuthenticationForm
from django.http import HttpRequest

from core.security.crypto import fingerprint
from core.telemetry.redis_client import quick_client

log = logging.getLogger(__name__)

#: Failures before the first wait: of an account; from an address, behind which there may be an office.
FREE = {"account": 5, "client": 20}
#: Seconds: the longest wait, and how long failures are remembered after the last one.
LONGEST, MEMORY = 60.0, 900.0
#: Accounts and addresses that are remembered without Redis.
REMEMBERED = 10_000

# An attempt counts as a failure until it has succeeded, so that many at once are no way around it.
_TAKE = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local longest = 0
for i, key in ipairs(KEYS) do
    local seen = redis.call('HMGET', key, 'n', 'at')
    local over = (tonumber(seen[1]) or 0) - tonumber(ARGV[i + 2])
    if over >= 0 then
        longest = math.max(longest, tonumber(seen[2]) + math.min(1000 * 2 ^ math.min(over, 20), tonumber(ARGV[1])) - now)
    end
end
if longest > 0 then return math.ceil(longest) end
for _, key in ipairs(KEYS) do
    redis.call('HINCRBY', key, 'n', 1)
    redis.call('HSET', key, 'at', now)
    redis.call('PEXPIRE', key, ARGV[2])
end
return 0
"""


@dataclass
class _Memory:
    """The same in this process, for when Redis is away."""

    seen: dict[str, tuple[int, float]] = field(default_factory=dict)  # key → failures, when
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, keys: dict[str, int]) -> float:
        with self.lock:
            now = time.monotonic()
            self.seen = {k: (n, at) for k, (n, at) in self.seen.items() if at > now - MEMORY}
            wait = max(self._until(key, free) - now for key, free in keys.items())
            if wait > 0:
                return wait
            for key in keys:
                self.seen[key] = (self.seen.pop(key, (0, now))[0] + 1, now)
            while len(self.seen) > REMEMBERED:
                del self.seen[next(iter(self.seen))]
            return 0.0

    def _until(self, key: str, free: int) -> float:
        count, at = self.seen.get(key, (0, 0.0))
        return at + min(2.0 ** min(count - free, 20), LONGEST) if count >= free else 0.0

    def forgive(self, account: str, client: str) -> None:
        with self.lock:
            self.seen.pop(account, None)
            if client in self.seen:
                count, at = self.seen[client]
                self.seen[client] = (count - 1, at)


_memory = _Memory()


class Attempt:
    """One attempt to log in. What identifies it is kept and written as a fingerprint only: a user name may be an address."""

    def __init__(self, username: str, client: str) -> None:
        self.account = fingerprint(f"login account {username.casefold()}").hex()
        self.client = fingerprint(f"login client {client}").hex()
        self._keys = {f"notif:{{logins}}:{kind}:{getattr(self, kind)}": free for kind, free in FREE.items()}

    def wait(self) -> float:
        """Seconds to wait; 0: it may be looked at, and counts as failed until it has succeeded."""
        try:
            arguments = [int(LONGEST * 1000), int(MEMORY * 1000), *self._keys.values()]
            return float(quick_client().eval(_TAKE, len(self._keys), *self._keys, *arguments)) / 1000
        except redis.RedisError as error:
            log.warning("admin_logins_counted_here", extra={"error": type(error).__name__})
            return _memory.take(self._keys)

    def succeeded(self) -> None:
        account, client = self._keys
        _memory.forgive(account, client)
        try:
            with quick_client().pipeline() as pipe:
                pipe.delete(account)
                pipe.hincrby(client, "n", -1)
                pipe.pexpire(client, int(MEMORY * 1000))
                pipe.execute()
        except redis.RedisError as error:
            log.warning("admin_logins_counted_here", extra={"error": type(error).__name__})

    def told(self) -> dict[str, str]:
        return {"account": self.account[:12], "client": self.client[:12]}


def client_of(request: HttpRequest) -> str:
    """Where a request comes from: what the proxy in front appended, not what its sender claims before that."""
    return (request.headers.get("X-Forwarded-For") or request.META.get("REMOTE_ADDR", "")).rpartition(",")[2].strip()


class LoginForm(AdminAuthenticationForm):
    """The admin's."""

    def clean(self) -> dict[str, Any]:
        username, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if self.request is None or not username or not password:
            return super().clean()
        attempt = Attempt(username, client_of(self.request))
        if (wait := attempt.wait()) > 0:
            log.warning("admin_login_refused", extra=attempt.told() | {"seconds": round(wait, 1)})
            raise forms.ValidationError(
                f"Too many failed attempts. Try again in {int(wait) + 1} seconds.", code="too_many_attempts"
            )
        try:
            cleaned = super().clean()
        except forms.ValidationError:
            log.warning("admin_login_failed", extra=attempt.told())
            raise
        attempt.succeeded()
        return cleaned
