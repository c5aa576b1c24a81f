"""The client: what it needs of Redis, and what it does when that is not there."""

import socket

import pytest
import redis as redis_module
from redis import Redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from core.governor.client import Bucket, Event, Governor, Limits
from tests.core.governor.rig import SCRIPT, want

LIMITS = Limits(Bucket(1, 0.001))
ODD = [
    "0198c2f4-5b1e-7c3a-9d2e-4f6a8b0c1d2e",
    "with spaces\tand\nlines",
    "quotes \" ' \\ and %s %d",
    "{braces}",
    ":colons:",
    "*[a-z]?",
    "żółć 🚂",
    "\x00\x01",
    "]] .. os.exit()",
    "0",
    "null",
]


def ask(governor: Governor, grant: str = "g", batch: str = "b") -> bool:
    return governor.acquire(
        grant=grant, batch=batch, rail="transactional", limits=LIMITS, max_batch=100, wants=[want()]
    ).granted


def test_it_asks_the_real_clock(redis: Redis) -> None:
    governor = Governor(redis, "resend")
    assert (ask(governor), ask(governor, "g2"), governor.spent()) == (True, False, 1)
    assert SCRIPT.count("'TIME'") == 1


def test_nothing_is_spent_at_first(redis: Redis) -> None:
    assert Governor(redis, "resend").spent() == 0


def test_a_redis_that_forgot_its_scripts_is_given_them_again(redis: Redis) -> None:
    governor = Governor(redis, "resend")
    assert ask(governor)
    redis.script_flush()
    governor.settle(grant="g", batch="b", rail="transactional", event=Event.ACCEPTED, limits=LIMITS)
    redis.script_flush()
    assert not ask(governor, "g2")


def test_a_redis_that_is_away_raises() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
        client = Redis(port=unused.getsockname()[1], retry=Retry(NoBackoff(), 0))
        governor = Governor(client, "resend")
        with pytest.raises(redis_module.RedisError):
            ask(governor)
        with pytest.raises(redis_module.RedisError):
            governor.settle(grant="g", batch="b", rail="transactional", event=Event.NONE, limits=LIMITS)
        with pytest.raises(redis_module.RedisError):
            governor.spent()


def test_providers_do_not_share_anything(redis: Redis) -> None:
    assert ask(Governor(redis, "one"))
    assert ask(Governor(redis, "two"))
    assert not ask(Governor(redis, "one"), "g2")


@pytest.mark.parametrize("provider", ["resend", "with space", "{", "}", "{}", "a}b{c", "ü"])
def test_all_keys_of_a_provider_are_in_one_slot(redis: Redis, provider: str) -> None:
    governor = Governor(redis, provider)
    assert ask(governor)
    assert len({key_slot(key.encode()) for key in governor.keys}) == 1
    assert set(redis.scan_iter()) == {key.encode() for key in governor.keys}


@pytest.mark.parametrize("odd", ODD)
def test_ids_may_hold_any_character(redis: Redis, odd: str) -> None:
    governor = Governor(redis, "resend")
    assert ask(governor, odd, odd)
    limits = Limits(Bucket(1, 1_000_000))
    for _ in range(3):
        assert (
            governor.settle(grant=odd, batch=odd, rail="transactional", event=Event.FAILED, limits=limits).circuit == ""
        ), "one batch"
    governor.settle(grant="x", batch="x", rail="transactional", event=Event.FAILED, limits=limits)
    assert governor.settle(grant="y", batch="y", rail="transactional", event=Event.FAILED, limits=limits).opened
    assert redis.zcard(governor.keys[2]) == 0


def test_the_largest_tenant_id_that_postgresql_and_json_agree_on(redis: Redis) -> None:
    big = 2**53 - 1
    governor = Governor(redis, "resend")
    decision = governor.acquire(
        grant="g", batch="b", rail="marketing", limits=LIMITS, max_batch=9, wants=[want(big, 9), want(big - 1, 9)]
    )
    assert (decision.shares, decision.cursors) == ((4, 5), {0: big - 1})
    assert set(redis.hkeys(governor.keys[1])) == {str(big).encode(), str(big - 1).encode()}


def test_due_work_must_want_something(redis: Redis) -> None:
    with pytest.raises(AssertionError, match="nothing wanted"):
        Governor(redis, "resend").acquire(grant="g", batch="b", rail="marketing", limits=LIMITS, max_batch=100)


def test_a_replay_needs_no_wants_and_takes_no_sends(redis: Redis) -> None:
    governor = Governor(redis, "resend")
    decision = governor.acquire(grant="g", batch="b", rail="marketing", limits=LIMITS, max_batch=100, replay=True)
    assert (decision.granted, decision.shares, decision.starved, decision.cursors) == (True, (), (), {})
    assert not redis.exists(governor.keys[1])


def test_an_unknown_operation_is_an_error(redis: Redis) -> None:
    with pytest.raises(redis_module.ResponseError, match="unknown operation"):
        Governor(redis, "resend")._call("guess")
