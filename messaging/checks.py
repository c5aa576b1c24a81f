"""System checks: what is configured so that nothing could be sent. Each says what to set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis
from django.apps.config import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from core.telemetry.redis_client import NO_CLUSTER, is_cluster, quick_client
from messaging.backpressure.settings import HINT, read_policy
from messaging.domain.rails import Channel
from messaging.providers.base import Adapter

_BROKER = "core.broker.RailBroker"


def _adapter_classes() -> dict[str, Any]:
    """Channel → what the setting's path names; an ImportError as the value where it names nothing."""
    found: dict[str, Any] = {}
    for channel, path in settings.MESSAGING_PROVIDERS.items():
        try:
            found[channel] = import_string(path)
        except ImportError as error:
            found[channel] = error
    return found


def _serves(kind: object, channel: str) -> bool:
    return isinstance(kind, type) and issubclass(kind, Adapter) and kind.channel == channel


def check_providers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    problems: list[CheckMessage] = []
    for channel, kind in _adapter_classes().items():
        path = settings.MESSAGING_PROVIDERS[channel]
        reason = None
        if channel not in set(Channel):
            reason = f"There is no channel {channel!r}; there are {', '.join(Channel)}."
        elif isinstance(kind, ImportError):
            reason = f"{path!r} cannot be imported: {kind}"
        elif not _serves(kind, channel):
            reason = f"{path!r} is not an Adapter for the channel {channel!r}."
        if reason:
            problems.append(
                Error(
                    f"MESSAGING_PROVIDERS[{channel!r}]: {reason}",
                    hint="Set it to the dotted path of an adapter, such as messaging.providers.resend.ResendAdapter.",
                    id="messaging.E001",
                )
            )
    return problems


def check_resend_key(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    resend = any(getattr(kind, "name", None) == "resend" for kind in _adapter_classes().values())
    if settings.DEBUG or settings.RESEND_API_KEY or not resend:
        return []
    return [
        Warning(
            "RESEND_API_KEY is not set: sends are accepted and wait, Resend refuses every request.",
            hint="Set RESEND_API_KEY to a key of the Resend account (it starts with re_).",
            id="messaging.W002",
        )
    ]


def check_broker(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.DRAMATIQ_BROKER.get("BROKER") == _BROKER:
        return []
    return [
        Error(
            "DRAMATIQ_BROKER is not this project's broker: with another one a submit blocks while Redis is away.",
            hint=f'Set DRAMATIQ_BROKER["BROKER"] = "{_BROKER}".',
            id="messaging.E003",
        )
    ]


def check_yield(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    configured: object = settings.MESSAGING_YIELD
    if isinstance(configured, Mapping):
        reasons = [_no_channel(channel) or _no_policy(channel, configured) for channel in configured]
    else:
        reasons = [_no_policy("", configured)]
    return [Error(reason, hint=HINT, id="messaging.E005") for reason in reasons if reason]


def _no_channel(channel: str) -> str:
    have = settings.MESSAGING_PROVIDERS
    if channel in have:
        return ""
    return f"MESSAGING_YIELD[{channel!r}]: there is no such channel; there are {', '.join(have) or 'none'}."


def _no_policy(channel: str, configured: object) -> str:
    try:
        read_policy(channel, configured)
    except ImproperlyConfigured as error:
        return str(error)
    return ""


def check_buckets(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Runs where a database may be asked: `migrate`, and `check --database default`.

    A warning, because an error would stop the very `migrate` that may bring the row.
    """
    from messaging.models import RateLimitBucket

    if "default" not in (databases or ()):
        return []
    connection = connections["default"]
    if RateLimitBucket._meta.db_table not in connection.introspection.table_names():
        return []  # before the first migrate
    names = {kind.name for channel, kind in _adapter_classes().items() if _serves(kind, channel)}
    have = RateLimitBucket.objects.filter(scope="global", unit="request").values_list("provider", flat=True)
    return [
        Warning(
            f"The provider {name} has no global rate limit bucket: nothing is sent through it.",
            hint="Add one in the admin (Rate limit buckets): scope global, unit requests; for a limit of n requests a"
            " second capacity 1 + 0.02 n, refill 0.98 n.",
            id="messaging.W004",
        )
        for name in sorted(names - set(have))
    ]


def check_redis(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Runs where a database may be asked, as `check_buckets`. Redis away is no fault of the configuration."""
    if "default" not in (databases or ()):
        return []
    try:
        cluster = is_cluster(quick_client())
    except redis.RedisError:
        return []
    return (
        [Error(NO_CLUSTER, hint="Set REDIS_URL to a Redis without cluster mode.", id="messaging.E006")]
        if cluster
        else []
    )


def register_checks() -> None:
    for check in (check_providers, check_resend_key, check_broker, check_yield):
        register(check)
    register(check_buckets, Tags.database)
    register(check_redis, Tags.database)
