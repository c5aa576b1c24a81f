"""A yield that is configured wrongly is refused at start, by a system check that says what to set."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import Error, run_checks
from django.core.exceptions import ImproperlyConfigured

from messaging.backpressure.policy import Adaptive, Fixed, Policy
from messaging.backpressure.settings import policy_of
from messaging.domain.rails import Channel

FIXED = {"policy": "fixed", "high": 1000, "low": 500}


def found() -> list[Error]:
    return [message for message in run_checks() if isinstance(message, Error) and message.id == "messaging.E005"]


@pytest.mark.parametrize(
    ("setting", "policy"),
    [
        ({}, Adaptive(1.0, 0.5, 5000)),
        ({"email": {}}, Adaptive(1.0, 0.5, 5000)),
        ({"email": {"policy": "adaptive", "target": 2}}, Adaptive(2.0, 1.0, 5000)),
        ({"email": {"target": 2, "low": 2, "ceiling": 10}}, Adaptive(2.0, 2.0, 10)),
        ({"email": FIXED}, Fixed(1000, 500)),
        ({"email": {"policy": "fixed", "high": 2, "low": 1}}, Fixed(2, 1)),
    ],
)
def test_what_is_right(settings: Any, setting: dict[str, Any], policy: Policy) -> None:
    settings.MESSAGING_YIELD = setting
    assert found() == []
    assert policy_of(Channel.EMAIL) == policy


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"email": FIXED | {"high": 0}}, "high must be a whole number of sends from 1"),
        ({"email": FIXED | {"low": 0}}, "low must be a whole number of sends from 1"),
        ({"email": FIXED | {"low": 1000}}, "low (1000) must be below high (1000)"),
        ({"email": FIXED | {"low": 1001}}, "low (1001) must be below high (1000)"),
        ({"email": FIXED | {"high": -5}}, "high must be"),
        ({"email": FIXED | {"high": 1.5}}, "high must be a whole number"),
        ({"email": FIXED | {"high": "1000"}}, "high must be a whole number"),
        ({"email": FIXED | {"high": True}}, "high must be a whole number"),
        ({"email": {"policy": "fixed", "high": 10}}, "needs low"),
        ({"email": {"policy": "fixed"}}, "needs high and low"),
        ({"email": FIXED | {"target": 1}}, "the fixed policy has no target"),
        ({"email": {"policy": "hopeful"}}, "no policy 'hopeful'; there are adaptive and fixed"),
        ({"email": {"policy": None}}, "no policy None"),
        ({"email": {"policy": ["fixed"]}}, "no policy ['fixed']"),
        ({"email": {"target": -1}}, "target must be a number of seconds above 0"),
        ({"email": {"target": 0}}, "target must be a number of seconds above 0"),
        ({"email": {"target": float("nan")}}, "target must be"),
        ({"email": {"target": float("inf")}}, "target must be"),
        ({"email": {"target": "1"}}, "target must be"),
        ({"email": {"target": 1, "low": 1.1}}, "low (1.1 s) must not be above target (1 s)"),
        ({"email": {"low": 0}}, "low must be a number of seconds above 0"),
        ({"email": {"ceiling": 0}}, "ceiling must be a whole number of sends from 1"),
        ({"email": {"ceiling": 1}}, "ceiling must be at least 2"),
        ({"email": {"hight": 3}}, "the adaptive policy has no hight"),
        ({"email": 1000}, "must be a mapping, not int"),
        ({"email": None}, "must be a mapping, not NoneType"),
        ({"sms": {}}, "MESSAGING_YIELD['sms']: there is no such channel; there are email"),
        ({"fax": FIXED}, "no such channel"),
        ({"": {}}, "no such channel"),
        ([], "must be a mapping of channels"),
        (None, "must be a mapping of channels"),
    ],
)
def test_what_is_refused(settings: Any, setting: Any, words: str) -> None:
    settings.MESSAGING_YIELD = setting
    (message,) = found()
    assert words in message.msg
    assert "MESSAGING_YIELD" in message.msg
    assert '"policy"' in str(message.hint)


def test_a_worker_that_ran_no_check_is_told_as_well(settings: Any) -> None:
    settings.MESSAGING_YIELD = {"email": {"policy": "hopeful"}}
    with pytest.raises(ImproperlyConfigured, match="hopeful"):
        policy_of(Channel.EMAIL)


def test_every_mistake_is_named_at_once(settings: Any) -> None:
    settings.MESSAGING_YIELD = {"email": {"target": -1}, "fax": {}}
    assert len(found()) == 2
