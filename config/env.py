"""What the environment says, read once, checked, typed.

Every setting that an operator can make is a field of `Env`; nothing else in the project reads `os.environ`
for configuration. A bad value raises `ImproperlyConfigured` that names the variable and says what to set,
never the value itself (it may be a secret).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

#: Values for development only: public, so that nobody takes them for secrets. `Env.read` refuses them with DEBUG off.
_DEV_SECRET_KEY = "development-only-not-a-secret"  # noqa: S105  # public, see above
_DEV_ENCRYPTION_KEYS = "dev:" + base64.urlsafe_b64encode(hashlib.sha256(b"development-only").digest()).decode()
_DEV_FINGERPRINT_KEY = base64.urlsafe_b64encode(hashlib.sha256(b"development-only-fp").digest()).decode()


@dataclass(frozen=True, slots=True)
class Env:
    """The typed environment. `repr` shows no secret."""

    debug: bool
    secret_key: str = field(repr=False)
    allowed_hosts: tuple[str, ...]
    database_url: str | None = field(repr=False)  # None: development, embedded PostgreSQL
    redis_url: str | None = field(repr=False)  # None: development, embedded Redis
    encryption_keys: Mapping[str, bytes] = field(repr=False)  # key id → 32 bytes; the first one encrypts
    fingerprint_key: bytes = field(repr=False)
    resend_api_key: str = field(repr=False)
    resend_base_url: str
    metrics_token: str = field(repr=False)  # "": /metrics is not there, but for development
    messaging_yield: Mapping[str, Any]
    log_level: str
    log_format: str  # "json" | "text"

    @classmethod
    def read(cls, source: Mapping[str, str] = os.environ) -> Env:
        debug = _flag(source, "DEBUG", default=False)
        env = cls(
            debug=debug,
            secret_key=_secret(source, "SECRET_KEY", debug, _DEV_SECRET_KEY),
            allowed_hosts=_hosts(source, debug),
            database_url=_url(source, "DATABASE_URL", ("postgres", "postgresql")),
            redis_url=_url(source, "REDIS_URL", ("redis", "rediss", "unix")),
            encryption_keys=_keyring(_secret(source, "ENCRYPTION_KEYS", debug, _DEV_ENCRYPTION_KEYS)),
            fingerprint_key=_key("FINGERPRINT_KEY", _secret(source, "FINGERPRINT_KEY", debug, _DEV_FINGERPRINT_KEY)),
            resend_api_key=source.get("RESEND_API_KEY", ""),
            resend_base_url=_base_url(source, "RESEND_BASE_URL", "https://api.resend.com", debug),
            metrics_token=_token(source, "METRICS_TOKEN"),
            messaging_yield=_json_object(source, "MESSAGING_YIELD"),
            log_level=_choice(source, "LOG_LEVEL", ("INFO", "DEBUG", "WARNING", "ERROR")),
            log_format=_choice(source, "LOG_FORMAT", ("text", "json") if debug else ("json", "text")),
        )
        if not debug:
            for name, value in (("DATABASE_URL", env.database_url), ("REDIS_URL", env.redis_url)):
                if value is None:
                    raise ImproperlyConfigured(
                        f"{name} is not set. Set it, or set DEBUG=1 for development with an embedded server."
                    )
        return env


def _flag(source: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = source.get(name, "").strip().lower()
    if value in ("", "1", "true", "yes", "on", "0", "false", "no", "off"):
        return default if value == "" else value in ("1", "true", "yes", "on")
    raise ImproperlyConfigured(f"{name} must be 1 or 0.")


def _token(source: Mapping[str, str], name: str) -> str:
    value = source.get(name, "")
    if value and (len(value) < 16 or not value.isascii() or not value.isprintable() or " " in value):
        raise ImproperlyConfigured(
            f"{name} must be at least 16 visible ASCII characters, e.g. of `openssl rand -hex 32`."
        )
    return value


def _json_object(source: Mapping[str, str], name: str) -> Mapping[str, Any]:
    try:
        value = json.loads(source.get(name, "") or "{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ImproperlyConfigured(f"{name} must be a JSON object.")
    return value


def _choice(source: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = source.get(name, "") or allowed[0]
    if value not in allowed:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(allowed)}.")
    return value


def _secret(source: Mapping[str, str], name: str, debug: bool, development: str) -> str:
    value = source.get(name, "")
    if value and (debug or value != development):
        return value
    if debug:
        return development
    raise ImproperlyConfigured(f"{name} is not set. `python manage.py generate_keys` prints fresh ones.")


def _hosts(source: Mapping[str, str], debug: bool) -> tuple[str, ...]:
    hosts = tuple(h.strip() for h in source.get("ALLOWED_HOSTS", "").split(",") if h.strip())
    if hosts or debug:
        return hosts or ("localhost", "127.0.0.1", "[::1]")
    raise ImproperlyConfigured("ALLOWED_HOSTS is not set. Set the host names that this site answers to, with commas.")


def _url(source: Mapping[str, str], name: str, schemes: tuple[str, ...]) -> str | None:
    value = source.get(name, "")
    if value and urlsplit(value).scheme not in schemes:
        raise ImproperlyConfigured(f"{name} must start with one of {', '.join(s + '://' for s in schemes)}.")
    return value or None


def _base_url(source: Mapping[str, str], name: str, default: str, debug: bool) -> str:
    value = (source.get(name, "") or default).rstrip("/")
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise ImproperlyConfigured(f"{name} must be an http(s) address without user, password or query.")
    if parts.scheme == "http" and not debug and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ImproperlyConfigured(f"{name} must be https:// (an API key would travel in the clear).")
    return value


def _key(name: str, text: str) -> bytes:
    try:
        key = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 32:
        raise ImproperlyConfigured(f"{name} must hold 32 bytes in base64. `manage.py generate_keys` prints fresh ones.")
    return key


def _keyring(text: str) -> Mapping[str, bytes]:
    """`id:base64[,id:base64…]`. The first key encrypts; all decrypt, so that a key can be rotated."""
    keys: dict[str, bytes] = {}
    for part in text.split(","):
        key_id, colon, material = part.strip().partition(":")
        if not (colon and key_id.isalnum() and len(key_id) <= 16) or key_id in keys:
            raise ImproperlyConfigured(
                "ENCRYPTION_KEYS must be id:base64[,id:base64…], each id of 1–16 letters and digits and used once."
            )
        keys[key_id] = _key("ENCRYPTION_KEYS", material)
    return keys
