"""`config.env`: what is accepted, and that a bad value is refused by the name of its variable, never by its content."""

from __future__ import annotations

import base64

import pytest
from django.core.exceptions import ImproperlyConfigured

from config.env import Env

KEY = base64.urlsafe_b64encode(bytes(range(32))).decode()
SHORT_KEY = base64.b64encode(b"sixteen bytes...").decode()

PRODUCTION = {
    "SECRET_KEY": "s3cret-key",
    "ALLOWED_HOSTS": "example.com, www.example.com",
    "DATABASE_URL": "postgresql://app:pw@db/app",
    "REDIS_URL": "rediss://:pw@cache:6379/0",
    "ENCRYPTION_KEYS": f"new:{KEY},old:{KEY}",
    "FINGERPRINT_KEY": KEY,
    "RESEND_API_KEY": "re_key",
}


def test_production() -> None:
    env = Env.read(PRODUCTION)
    assert not env.debug
    assert env.allowed_hosts == ("example.com", "www.example.com")
    assert list(env.encryption_keys) == ["new", "old"]  # the first one encrypts
    assert env.fingerprint_key == bytes(range(32))
    assert env.resend_base_url == "https://api.resend.com"
    assert (env.log_level, env.log_format) == ("INFO", "json")


def test_development_needs_nothing() -> None:
    env = Env.read({"DEBUG": "1"})
    assert env.debug
    assert env.database_url is None
    assert env.redis_url is None
    assert "localhost" in env.allowed_hosts
    assert env.log_format == "text"


@pytest.mark.parametrize("name", sorted(set(PRODUCTION) - {"RESEND_API_KEY"}))
def test_production_refuses_what_is_missing(name: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=name):
        Env.read({k: v for k, v in PRODUCTION.items() if k != name})


@pytest.mark.parametrize("name", ["SECRET_KEY", "ENCRYPTION_KEYS", "FINGERPRINT_KEY"])
def test_production_refuses_the_published_development_values(name: str) -> None:
    from config import env as module

    published = vars(module)[f"_DEV_{name}"]
    with pytest.raises(ImproperlyConfigured, match=name):
        Env.read(PRODUCTION | {name: published})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEBUG", "perhaps"),
        ("DATABASE_URL", "mysql://app:hunter2@db/app"),
        ("DATABASE_URL", "app:hunter2@db"),
        ("REDIS_URL", "http://:hunter2@cache"),
        ("ENCRYPTION_KEYS", "hunter2"),
        ("ENCRYPTION_KEYS", f"a:{SHORT_KEY}"),
        ("ENCRYPTION_KEYS", "a:hunter2!"),
        ("ENCRYPTION_KEYS", f"a b:{KEY}"),
        ("ENCRYPTION_KEYS", f"seventeen4letters:{KEY}"),
        ("ENCRYPTION_KEYS", f"a:{KEY},a:{KEY}"),
        ("ENCRYPTION_KEYS", f"a:{KEY},"),
        ("FINGERPRINT_KEY", "hunter2"),
        ("FINGERPRINT_KEY", SHORT_KEY),
        ("RESEND_BASE_URL", "ftp://hunter2.example"),
        ("RESEND_BASE_URL", "https://user:hunter2@api.example"),
        ("RESEND_BASE_URL", "https://api.example/?key=hunter2"),
        ("RESEND_BASE_URL", "https://"),
        ("RESEND_BASE_URL", "http://hunter2.example"),  # the key would travel in the clear
        ("METRICS_TOKEN", "hunter2"),
        ("METRICS_TOKEN", "hunter2 hunter2 hunter2"),
        ("MESSAGING_YIELD", "hunter2"),
        ("MESSAGING_YIELD", '["hunter2"]'),
        ("LOG_LEVEL", "hunter2"),
        ("LOG_FORMAT", "hunter2"),
    ],
)
def test_a_bad_value_is_named_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        Env.read(PRODUCTION | {name: value})
    message = str(caught.value)
    assert name in message
    assert value not in message
    assert "hunter2" not in message
    assert SHORT_KEY not in message


def test_a_local_provider_may_be_plain_http() -> None:
    assert (
        Env.read(PRODUCTION | {"RESEND_BASE_URL": "http://127.0.0.1:8025/"}).resend_base_url == "http://127.0.0.1:8025"
    )


@pytest.mark.parametrize(("text", "debug"), [("1", True), ("on", True), ("TRUE", True), ("0", False), ("no", False)])
def test_flags(text: str, debug: bool) -> None:
    assert Env.read(PRODUCTION | {"DEBUG": text}).debug is debug


def test_keys_may_be_in_either_base64_alphabet() -> None:
    key = bytes([0xFB, 0xFF] * 16)  # + and / in one alphabet, - and _ in the other
    for text in (base64.b64encode(key).decode(), base64.urlsafe_b64encode(key).decode()):
        assert Env.read(PRODUCTION | {"FINGERPRINT_KEY": text}).fingerprint_key == key


def test_repr_shows_no_secret() -> None:
    shown = repr(Env.read(PRODUCTION | {"METRICS_TOKEN": "t" * 16}))
    for secret in ("t" * 16, "s3cret-key", "pw@", "re_key", KEY, repr(bytes(range(32)))):
        assert secret not in shown
