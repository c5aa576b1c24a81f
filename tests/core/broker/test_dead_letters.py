"""Dead letters of actors: one for each bug, bounded, with its places and without anybody's data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
import redis
from django.db import InterfaceError, InternalError, OperationalError
from dramatiq.broker import MessageProxy
from dramatiq.middleware import Middleware
from psycopg.errors import ReadOnlySqlTransaction

from core.broker.dead_letters import _MAX_TRACEBACK, ActorDeadLetters, record_death
from core.models import DeadLetter

pytestmark = pytest.mark.django_db(transaction=True)


def _caught(work: Callable[[], Any]) -> Exception:
    try:
        work()
    except (LookupError, RuntimeError) as error:
        return error
    raise AssertionError("nothing was raised")


def _look_up(address: str) -> None:
    raise LookupError(f"nobody is {address}")


def _translate(address: str) -> None:
    try:
        _look_up(address)
    except LookupError as error:
        raise RuntimeError(f"failed for {address}") from error


def _die(error: BaseException, **options: Any) -> None:
    message: dramatiq.Message[None] = dramatiq.Message(
        queue_name="q", actor_name="importer", args=("ada@home.org",), kwargs={}, options=options
    )
    ActorDeadLetters().after_process_message(dramatiq.get_broker(), MessageProxy(message), exception=error)


def test_the_letter_names_the_place_and_the_kinds_of_error_and_quotes_nobody() -> None:
    address = "ada@home.org"
    _die(_caught(lambda: _translate(address)))
    letter = DeadLetter.objects.get()
    assert letter.detail.startswith("importer: RuntimeError at ")
    told = letter.traceback
    assert told.index("in _look_up") < told.index("\nLookupError") < told.index("led to") < told.index("\nRuntimeError")
    assert "ada@" not in letter.detail + told
    assert (letter.send_id, letter.tenant, letter.channel) == (None, None, "")


def test_the_same_bug_is_one_letter_with_a_count_another_one_another() -> None:
    for i in range(5):
        _die(_caught(lambda: _translate("x")) if i < 4 else _caught(lambda: _look_up("x")))
    found = sorted(DeadLetter.objects.values_list("times", flat=True))
    assert sum(found) == 5
    assert len(found) == 2
    last = DeadLetter.objects.order_by("times").last()
    assert last is not None
    assert last.last_at is not None
    assert last.last_at > last.created_at


def test_the_same_bug_in_another_actor_is_another_letter() -> None:
    error = _caught(lambda: _look_up("x"))
    record_death("one", error)
    record_death("two", error)
    assert DeadLetter.objects.count() == 2


def test_a_traceback_without_end_is_cut_and_still_one_letter() -> None:
    def deeper(n: int) -> None:
        deeper(n + 1)

    for _ in range(3):
        _die(_caught(lambda: deeper(0)))
    assert DeadLetter.objects.count() == 1
    assert len(DeadLetter.objects.get().traceback) <= _MAX_TRACEBACK


def test_errors_that_cause_each_other_come_to_an_end() -> None:
    one, two = LookupError(), RuntimeError()
    one.__cause__, two.__cause__ = two, one
    _die(one)
    assert DeadLetter.objects.get().times == 1


def _read_only() -> InternalError:
    error = InternalError("cannot execute UPDATE in a read-only transaction")
    error.__cause__ = ReadOnlySqlTransaction()
    return error


@pytest.mark.parametrize(
    "error",
    [OperationalError(), InterfaceError(), _read_only(), redis.ConnectionError(), redis.TimeoutError()],
    ids=repr,
)
def test_what_passes_by_itself_is_no_bug(error: Exception) -> None:
    _die(error)
    assert not DeadLetter.objects.exists()


def test_what_the_actor_says_it_may_raise_is_no_bug() -> None:
    _die(LookupError(), throws=LookupError)
    _die(LookupError(), throws=(LookupError, RuntimeError))
    assert not DeadLetter.objects.exists()
    _die(LookupError(), throws=RuntimeError)
    assert DeadLetter.objects.count() == 1


def test_the_broker_calls_it_before_connections_are_closed() -> None:
    """Hooks that follow something are called from the end of the list."""
    kinds: list[type[Middleware]] = [type(m) for m in dramatiq.get_broker().middleware]
    names = [kind.__name__ for kind in kinds]
    assert names.index("DbConnectionsMiddleware") < names.index("ActorDeadLetters")
