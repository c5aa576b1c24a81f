"""`MESSAGING_YIELD`: channel → policy. A channel without an entry has the adaptive policy with its defaults.

{"email": {"policy": "adaptive", "target": 1.0, "low": 0.5, "ceiling": 5000}}   seconds, seconds, sends
{"email": {"policy": "fixed", "high": 1000, "low": 500}}                        sends, sends
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from messaging.backpressure.policy import CEILING, TARGET, Adaptive, Fixed, Policy
from messaging.domain.rails import Channel

_KEYS = {"adaptive": ("target", "low", "ceiling"), "fixed": ("high", "low")}
HINT = (
    'Set it to {"policy": "adaptive", "target": seconds, "low": seconds, "ceiling": sends} or'
    ' {"policy": "fixed", "high": sends, "low": sends}, or leave it out:'
    f" adaptive with {TARGET:g} s, half of it, {CEILING} sends."
)


def policy_of(channel: Channel) -> Policy:
    """The channel's policy. Raises ImproperlyConfigured with what the system check says."""
    return read_policy(channel, settings.MESSAGING_YIELD)


def read_policy(channel: str, setting: object) -> Policy:
    where = f"MESSAGING_YIELD[{channel!r}]"
    if not isinstance(setting, Mapping):
        raise ImproperlyConfigured("MESSAGING_YIELD must be a mapping of channels to policies.")
    values = setting.get(channel, {})
    if not isinstance(values, Mapping):
        raise ImproperlyConfigured(f"{where} must be a mapping, not {type(values).__name__}.")
    kind = values.get("policy", "adaptive")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise ImproperlyConfigured(f"{where}: there is no policy {kind!r}; there are {' and '.join(_KEYS)}.")
    unknown = [str(key) for key in values if key != "policy" and key not in _KEYS[kind]]
    if unknown:
        raise ImproperlyConfigured(
            f"{where}: the {kind} policy has no {', '.join(unknown)}, only {', '.join(_KEYS[kind])}."
        )
    return _fixed(where, values) if kind == "fixed" else _adaptive(where, values)


def _fixed(where: str, values: Mapping[str, Any]) -> Fixed:
    missing = [key for key in _KEYS["fixed"] if key not in values]
    if missing:
        raise ImproperlyConfigured(f"{where}: the fixed policy needs {' and '.join(missing)}, in sends.")
    policy = Fixed(_sends(where, "high", values["high"]), _sends(where, "low", values["low"]))
    if policy.low >= policy.high:
        raise ImproperlyConfigured(f"{where}: low ({policy.low}) must be below high ({policy.high}).")
    return policy


def _adaptive(where: str, values: Mapping[str, Any]) -> Adaptive:
    target = _seconds(where, "target", values.get("target", TARGET))
    low = _seconds(where, "low", values.get("low", target / 2))
    ceiling = _sends(where, "ceiling", values.get("ceiling", CEILING))
    if low > target:
        raise ImproperlyConfigured(f"{where}: low ({low:g} s) must not be above target ({target:g} s).")
    if ceiling < 2:
        raise ImproperlyConfigured(f"{where}: ceiling must be at least 2 sends.")
    return Adaptive(target, low, ceiling)


def _sends(where: str, name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise ImproperlyConfigured(f"{where}: {name} must be a whole number of sends from 1 to 1000000, not {value!r}.")
    return value


def _seconds(where: str, name: str, value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 < value <= 3600
    ):
        raise ImproperlyConfigured(f"{where}: {name} must be a number of seconds above 0, at most 3600, not {value!r}.")
    return float(value)
