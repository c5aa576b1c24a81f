"""Logins of the admin: guessing is slow and seen, the right password gets in, Redis or not."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import redis as redis_module
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.test import Client
from redis import Redis

from core.security import logins
from core.security.logins import FREE, LONGEST, Attempt

pytestmark = pytest.mark.django_db

NAME, PASSWORD = "ada@inbox.example", "correct horse battery"


@pytest.fixture(autouse=True)
def _user(redis: Redis) -> Iterator[None]:
    User.objects.create(username=NAME, is_staff=True, password=f"md5$x${_md5('x' + PASSWORD)}")
    logins._memory.seen.clear()
    yield
    logins._memory.seen.clear()


@pytest.fixture(autouse=True)
def _quick_hashes(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def log_in(password: str = PASSWORD, *, name: str = NAME, client: str = "203.0.113.7") -> str:
    """What came of it."""
    headers = {"X-Forwarded-For": f"198.51.100.99, {client}"}
    answer = Client().post("/admin/login/", {"username": name, "password": password}, headers=headers)
    if answer.status_code == 302:
        return "in"
    return "wait" if "Too many failed attempts" in answer.content.decode() else "wrong"


@pytest.fixture(params=["redis", "away"])
def store(request: pytest.FixtureRequest, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Where failures are counted. Called with seconds: so long ago they shall have been."""
    if request.param == "away":

        class Away:
            def eval(self, *args: object) -> None:
                raise redis_module.ConnectionError

            def pipeline(self) -> None:
                raise redis_module.ConnectionError

        monkeypatch.setattr(logins, "quick_client", Away)

        def back(seconds: float) -> None:
            seen, at = logins._memory.seen, time.monotonic() - seconds
            seen.update({key: (count, at) for key, (count, _) in seen.items()})
    else:

        def back(seconds: float) -> None:
            now, us = cast("tuple[int, int]", redis.time())
            for key in redis.keys("notif:{logins}:*"):
                redis.hset(key, "at", now * 1000 + us // 1000 - int(seconds * 1000))

    return back


def test_wrong_ones_have_to_wait_and_longer_each_time(store: Callable[[float], None]) -> None:
    assert [log_in("guess") for _ in range(FREE["account"])] == ["wrong"] * FREE["account"]
    for password in ["guess"] * (20 - FREE["account"]) + [PASSWORD]:  # also the right one: it is not looked at
        store(0.0)
        assert log_in(password) == "wait"
    for seconds in (1.0, 2.0, 4.0):
        store(seconds - 0.5)
        assert log_in("guess") == "wait"
        store(seconds)
        assert log_in("guess") == "wrong"
    for _ in range(10):
        store(LONGEST)  # never longer: nobody is locked out
        assert log_in("guess") == "wrong"
    store(LONGEST)
    assert log_in() == "in"
    assert log_in("guess") == "wrong"  # and all is as before


def test_a_few_mistakes_cost_nothing(store: Callable[[float], None]) -> None:
    for _ in range(3):
        assert [log_in("typo") for _ in range(FREE["account"] - 1)] == ["wrong"] * (FREE["account"] - 1)
        assert log_in() == "in"


def test_many_accounts_from_one_address_and_one_from_many(store: Callable[[float], None]) -> None:
    told = [log_in("guess", name=f"user{i}") for i in range(FREE["client"] + 2)]
    assert told == ["wrong"] * FREE["client"] + ["wait"] * 2
    assert log_in() == "wait"
    assert log_in(client="203.0.113.8") == "in"  # another address, another account
    told = [log_in("guess", client=f"192.0.2.{i}") for i in range(FREE["account"] + 1)]
    assert told == ["wrong"] * FREE["account"] + ["wait"]


def test_many_at_once_are_no_way_around(store: Callable[[float], None]) -> None:
    with ThreadPoolExecutor(8) as pool:
        waits = list(pool.map(lambda _: Attempt(NAME, "203.0.113.7").wait(), range(40)))
    assert sum(wait == 0 for wait in waits) == FREE["account"]
    assert max(waits) <= 1.0


def test_failures_are_forgotten_by_themselves(redis: Redis) -> None:
    log_in("guess")
    keys = redis.keys("notif:{logins}:*")
    assert len(keys) == 2
    assert all(0 < redis.ttl(key) <= logins.MEMORY for key in keys)
    assert not any(b"ada" in key or b"203" in key for key in keys)


def test_without_redis_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "REMEMBERED", 10)
    for i in range(100):
        logins._memory.take({f"account {i}": 5, "client": 1000})
    assert len(logins._memory.seen) == 10
    assert logins._memory.seen["client"][0] == 100


def test_failures_are_logged_without_name_or_address(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(FREE["account"] + 1):
            log_in("guess")
    told = [record for record in caplog.records if record.name == "core.security.logins"]
    assert [record.message for record in told] == ["admin_login_failed"] * FREE["account"] + ["admin_login_refused"]
    assert len({vars(record)["account"] for record in told}) == 1
    written = repr([vars(record) for record in told])
    assert not any(raw in written for raw in (NAME, "203.0.113", "guess"))


def test_who_is_no_operator_is_counted_too() -> None:
    User.objects.filter(username=NAME).update(is_staff=False)
    assert [log_in() for _ in range(FREE["account"] + 1)] == ["wrong"] * FREE["account"] + ["wait"]


@pytest.mark.parametrize("password", ["1", "password1234", "123456789012345", "ada@inbox.exam", "shortone1"])
def test_a_password_that_is_guessed_is_refused(password: str) -> None:
    with pytest.raises(ValidationError):
        validate_password(password, User.objects.get())
    validate_password(PASSWORD, User.objects.get())
