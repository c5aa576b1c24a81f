"""System checks: one for each way to configure a platform that sends nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import CheckMessage, Error, Warning, run_checks
from django.db import connection

from messaging import checks
from messaging.models import RateLimitBucket
from tests.messaging.tenant_rig import ensure_bucket


def found(**kwargs: Any) -> list[CheckMessage]:
    return [message for message in run_checks(**kwargs) if str(message.id).startswith("messaging.")]


@pytest.fixture(autouse=True)
def key(settings: Any) -> None:
    settings.RESEND_API_KEY = "re_test"


@pytest.fixture
def bucket(db: None) -> None:
    ensure_bucket()


def test_as_it_comes_there_is_nothing_to_say(bucket: None) -> None:
    assert found() == []
    assert found(databases=["default"]) == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"email": "messaging.providers.nope.Adapter"}, "cannot be imported"),
        ({"email": "messaging.providers.resend.adapter.Nope"}, "cannot be imported"),
        ({"email": "nonsense"}, "cannot be imported"),
        ({"email": "messaging.providers.base.Item"}, "not an Adapter for the channel 'email'"),
        ({"sms": "messaging.providers.resend.ResendAdapter"}, "not an Adapter for the channel 'sms'"),
        ({"fax": "messaging.providers.resend.ResendAdapter"}, "no channel 'fax'"),
    ],
)
def test_a_provider_that_is_none(settings: Any, setting: dict[str, str], words: str) -> None:
    settings.MESSAGING_PROVIDERS = setting
    (message,) = found()
    assert isinstance(message, Error)
    assert message.id == "messaging.E001"
    assert words in message.msg
    assert "MESSAGING_PROVIDERS" in message.msg
    assert message.hint


def test_a_missing_key_of_resend(settings: Any) -> None:
    settings.RESEND_API_KEY = ""
    settings.DEBUG = True
    assert found() == []
    settings.DEBUG = False
    (message,) = found()
    assert isinstance(message, Warning)
    assert (message.id, "RESEND_API_KEY" in str(message.hint)) == ("messaging.W002", True)
    settings.MESSAGING_PROVIDERS = {}
    assert found() == []


def test_another_broker(settings: Any) -> None:
    settings.DRAMATIQ_BROKER = settings.DRAMATIQ_BROKER | {"BROKER": "dramatiq.brokers.redis.RedisBroker"}
    (message,) = found()
    assert isinstance(message, Error)
    assert (message.id, "core.broker.RailBroker" in str(message.hint)) == ("messaging.E003", True)


def test_a_provider_without_a_global_bucket(bucket: None) -> None:
    RateLimitBucket.objects.filter(unit="request").delete()
    assert found() == []  # nobody allowed the database to be asked
    (message,) = found(databases=["default"])
    assert isinstance(message, Warning)
    assert (message.id, "resend" in message.msg, "admin" in str(message.hint)) == ("messaging.W004", True, True)


def test_before_the_first_migrate_there_is_nothing_to_ask(bucket: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE messaging_rate_limit_buckets RENAME TO elsewhere")
    assert checks.check_buckets(None, databases=["default"]) == []
