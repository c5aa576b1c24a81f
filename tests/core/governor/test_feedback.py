"""What a settled grant changes: tokens given back, blocks, corrections from the provider's headers, and a fresh start."""

import pytest
from redis import Redis

from core.governor.client import FLIGHT_TTL, Bucket, Event, Limits
from tests.core.governor.rig import TimedGovernor, about, want

#: Five requests at once: what a full bucket holds above is no credit for having been idle.
FIVE = Limits(Bucket(5.204, 10))


def full(governor: TimedGovernor, limits: Limits = FIVE) -> None:
    """A used governor whose levels are full again."""
    governor.limits = limits
    governor.transactional()
    governor.report(Event.ACCEPTED)
    governor.advance(60)


def test_an_unused_token_comes_back(governor: TimedGovernor) -> None:
    decision = governor.transactional()
    governor.report(Event.NONE, epoch=decision.epoch, unused=True)
    assert (governor.tokens(), governor.spent()) == (1, 0)
    assert governor.marketing().granted


def test_a_used_token_does_not(governor: TimedGovernor) -> None:
    governor.transactional()
    governor.report(Event.ACCEPTED)
    assert (governor.tokens(), governor.spent()) == (0, 1)


def test_nothing_comes_back_twice(governor: TimedGovernor) -> None:
    bucket = Bucket(100, 1)
    governor.limits = Limits(Bucket(5, 0.001), Bucket(1000, 0.001))
    decision = governor.transactional(want(1, 50, bucket=bucket))
    for _ in range(3):
        governor.report(Event.NONE, epoch=decision.epoch, unused=True, back=((1, 20, bucket),))
    assert (governor.tokens(), governor.spent()) == (1, 0)
    assert governor.tenants()[1][0] == 70
    assert float(governor.state()["q_tokens"]) == 970


def test_nothing_comes_back_for_a_grant_that_was_forgotten(governor: TimedGovernor) -> None:
    bucket = Bucket(100, 0.001)
    decision = governor.transactional(want(1, 50, bucket=bucket))
    governor.advance(FLIGHT_TTL)
    governor.report(Event.NONE, epoch=decision.epoch, unused=True, back=((1, 50, bucket),))
    assert governor.spent() == 1
    assert governor.tenants()[1][0] == 50


def test_nothing_comes_back_for_a_grant_from_before_redis_lost_its_memory(governor: TimedGovernor) -> None:
    decision = governor.transactional()
    governor.client.flushdb()
    governor.report(Event.NONE, epoch=decision.epoch, unused=True)
    assert (set(governor.state()), governor.spent()) == ({"seen"}, 0)


def test_sends_that_a_request_did_not_carry_come_back_though_its_token_is_used(governor: TimedGovernor) -> None:
    bucket = Bucket(100, 0.001)
    governor.transactional(want(1, 50, bucket=bucket))
    governor.report(Event.ACCEPTED, back=((1, 10, bucket),))
    assert (governor.tokens(), governor.spent(), governor.tenants()[1][0]) == (0, 1, 60)


def test_both_wants_of_a_tenant_give_back(governor: TimedGovernor) -> None:
    bucket = Bucket(100, 0.001)
    assert governor.transactional(want(1, 50, 0, bucket), want(1, 30, 1, bucket)).shares == (50, 30)
    governor.report(Event.ACCEPTED, back=((1, 7, bucket), (1, 5, bucket)))
    assert governor.tenants()[1][0] == 32


def test_nothing_rises_above_its_capacity(governor: TimedGovernor) -> None:
    bucket = Bucket(100, 0.001)
    full(governor, Limits(Bucket(5, 10), Bucket(1000, 1000)))
    decision = governor.transactional(want(1, 50, bucket=bucket))
    governor.advance(10)
    governor.report(Event.NONE, epoch=decision.epoch, unused=True, back=((1, 90, bucket),))
    assert (governor.tokens(), governor.tenants()[1][0], float(governor.state()["q_tokens"])) == (5, 100, 1000)


@pytest.mark.parametrize("correction", ["headers", "429"])
def test_a_token_from_before_a_correction_is_void(governor: TimedGovernor, correction: str) -> None:
    full(governor)
    early = governor.transactional()
    grant = governor.grant
    governor.transactional()
    if correction == "headers":
        governor.report(Event.ACCEPTED, remaining=1)  # one in flight: nothing is free
    else:
        governor.report(Event.RATE_LIMITED, retry_after=2)
    before = governor.tokens()
    governor.report(Event.NONE, grant, epoch=early.epoch, unused=True)
    assert governor.tokens() == before == 0
    assert governor.spent() == 2, "of three tokens: no request was made for this one, and the count says so"


# 429


def test_a_429_blocks_everybody_and_leaves_one_token_at_its_end(governor: TimedGovernor) -> None:
    full(governor)
    governor.marketing()
    assert governor.report(Event.RATE_LIMITED, retry_after=2.5).blocked == about(2.5)
    for rail in ("transactional", "marketing"):
        refused = governor.ask(rail)
        assert (refused.granted, refused.reason, refused.wait) == (False, "rate_limited", about(2.5))
    assert governor.ask("transactional", replay=True).reason == "rate_limited"
    governor.advance(2.5)
    assert governor.transactional().granted
    assert governor.transactional().reason == "global"


def test_the_token_at_the_end_of_a_block_is_the_transactional_rails_if_it_has_asked(governor: TimedGovernor) -> None:
    governor.transactional()
    governor.report(Event.RATE_LIMITED, retry_after=2)
    assert not governor.transactional().granted
    governor.advance(2)
    assert governor.marketing().reason == "transactional_waits"
    assert governor.transactional().granted


def test_nobody_waits_for_a_transactional_rail_that_did_not_ask(governor: TimedGovernor) -> None:
    governor.marketing()
    governor.report(Event.RATE_LIMITED, retry_after=2)
    governor.advance(2)
    assert governor.marketing().granted


@pytest.mark.parametrize(("retry_after", "pause"), [(0.0, 1.0), (0.2, 1.0), (7.0, 7.0), (10_000_000.0, 86_400.0)])
def test_a_block_lasts_at_least_a_second_and_at_most_a_day(
    governor: TimedGovernor, retry_after: float, pause: float
) -> None:
    governor.transactional()
    assert governor.report(Event.RATE_LIMITED, retry_after=retry_after).blocked == about(pause)


def test_without_retry_after_the_pause_doubles_up_to_a_minute_until_something_is_accepted(
    governor: TimedGovernor,
) -> None:
    def pauses(count: int) -> list[float]:
        found = []
        for _ in range(count):
            decision = governor.transactional()
            assert decision.granted
            found.append(governor.report(Event.RATE_LIMITED, epoch=decision.epoch).blocked)
            governor.advance(100)
        return found

    governor.jitter = 1.0
    assert pauses(4) == [about(seconds) for seconds in (1, 2, 4, 8)]
    governor.transactional()
    governor.report(Event.ANSWERED)
    governor.advance(1)
    assert pauses(4) == [about(seconds) for seconds in (16, 32, 60, 60)]
    governor.transactional()
    governor.report(Event.ACCEPTED)
    governor.advance(1)
    governor.jitter = 0.0
    assert pauses(4) == [about(seconds) for seconds in (1, 1, 2, 4)]


def test_requests_that_were_under_way_together_are_one_strike(governor: TimedGovernor) -> None:
    """Five workers hear the same 429: the pause is that of the first one, not sixteen times as long."""
    governor.jitter = 1.0
    full(governor)
    grants = []
    for _ in range(5):
        decision = governor.transactional()
        assert decision.granted
        grants.append((governor.grant, decision.epoch))
    pauses = [governor.report(Event.RATE_LIMITED, grant, epoch=epoch).blocked for grant, epoch in grants]
    assert pauses == [about(1)] * 5
    governor.advance(1)
    decision = governor.transactional()
    assert governor.report(Event.RATE_LIMITED, epoch=decision.epoch).blocked == about(2)


def test_a_shorter_block_does_not_end_a_longer_one(governor: TimedGovernor) -> None:
    full(governor)
    governor.transactional()
    first = governor.grant
    governor.transactional()
    governor.report(Event.QUOTA, retry_after=3600)
    assert governor.report(Event.RATE_LIMITED, first, retry_after=1).blocked == about(3600)
    assert governor.transactional().reason == "quota"
    governor.advance(3600)
    assert governor.transactional().granted
    assert governor.transactional().reason == "global"


# Headers


def test_headers_lower_a_level_to_what_is_left_net_of_flights(governor: TimedGovernor) -> None:
    full(governor)
    governor.transactional()
    governor.transactional()  # stays in flight
    governor.report(Event.ACCEPTED, "grant-2", remaining=2)
    assert governor.tokens() == 1


@pytest.mark.parametrize("remaining", [3, 100])
def test_headers_never_raise_a_level(governor: TimedGovernor, remaining: int) -> None:
    full(governor)
    governor.transactional()
    governor.transactional()
    epoch = governor.transactional().epoch
    governor.report(Event.ACCEPTED, remaining=remaining)
    assert governor.tokens() == (2 if remaining == 100 else 1)
    assert int(governor.state().get("epoch", 0)) == epoch + (0 if remaining == 100 else 1)


@pytest.mark.parametrize("refill", [10, 0.5])
def test_headers_of_a_429_are_not_asked(governor: TimedGovernor, refill: float) -> None:
    """They say 0, and the token that is there at the block's end must not be lost to that."""
    governor.limits = Limits(Bucket(1, refill))
    governor.transactional()
    governor.report(Event.RATE_LIMITED, retry_after=1, remaining=0)
    governor.advance(1)
    assert governor.transactional().granted


def test_flights_that_nobody_settled_are_forgotten(governor: TimedGovernor) -> None:
    full(governor)
    for _ in range(3):
        governor.transactional()
    assert len(governor.flights()) == 3
    governor.advance(FLIGHT_TTL)
    governor.transactional()
    assert list(governor.flights()) == [governor.grant]


# A fresh start


def test_after_a_flush_there_is_one_token_whatever_the_capacity(governor: TimedGovernor, redis: Redis) -> None:
    full(governor)
    redis.flushall()
    assert governor.transactional().granted
    assert governor.transactional().reason == "global"


def test_a_lowered_capacity_takes_effect_at_once(governor: TimedGovernor) -> None:
    full(governor)
    governor.limits = Limits(Bucket(2.204, 10))
    assert [governor.transactional().granted for _ in range(3)] == [True, True, False]


# Quota


def test_the_quota_limits_the_sends_of_a_batch_and_then_refuses(governor: TimedGovernor) -> None:
    governor.limits = Limits(Bucket(5, 10), Bucket(150, 0.1))
    assert governor.marketing(want(sends=100)).shares == (100,)
    governor.advance(0.1)
    assert governor.marketing(want(sends=100)).shares == (50,)
    governor.advance(0.1)
    refused = governor.transactional(want(sends=100))
    assert (refused.reason, refused.wait) == ("quota", about(9.8))
    assert governor.ask("transactional", replay=True).granted, "a replay was charged already"


def test_the_reserve_of_the_quota_is_only_for_the_transactional_rail(governor: TimedGovernor) -> None:
    governor.limits = Limits(Bucket(5, 10), Bucket(150, 0.1, reserve=50))
    assert governor.marketing(want(sends=200), want(2, 200)).shares == (50, 50)
    governor.advance(0.1)
    assert governor.marketing().reason == "quota"
    assert governor.transactional(want(sends=100)).shares == (50,)


def test_a_clock_that_goes_back_stops_nothing(governor: TimedGovernor) -> None:
    """Redis fails over to a host that is an hour behind: levels grow, and marks and blocks end, as they would have."""
    governor.limits = Limits(Bucket(1, 10), Bucket(100, 10))
    governor.transactional(want(1, 50, bucket=Bucket(50, 10)))
    governor.transactional(want(2))  # leaves the mark
    governor.advance(-3600)
    assert governor.marketing().reason == "transactional_waits"
    governor.advance(0.1)
    assert governor.transactional(want(1, 50, bucket=Bucket(50, 10))).reason == "tenant"
    governor.advance(1)
    assert governor.transactional(want(1, 50, bucket=Bucket(50, 10))).granted


def test_a_block_ends_when_it_would_have_though_the_clock_went_back(governor: TimedGovernor) -> None:
    governor.transactional()
    governor.report(Event.RATE_LIMITED, retry_after=2)
    governor.advance(-3600)
    assert governor.transactional().wait == about(2)
    governor.advance(2)
    assert governor.transactional().granted


def test_no_mark_outlives_a_change_of_the_refill(governor: TimedGovernor) -> None:
    """The operator raised a refill under which the next token was an hour away."""
    governor.limits = Limits(Bucket(1, 1 / 3600))
    governor.transactional()
    assert governor.transactional().wait == about(3600)
    governor.limits = Limits(Bucket(1, 1000))
    governor.advance(2.1)
    assert governor.marketing().granted


def test_a_late_request_puts_off_what_comes_after_it(governor: TimedGovernor) -> None:
    """0.1 s between tokens; the first request left 50 ms late, so the next one leaves after 150 ms."""
    governor.transactional()
    governor.late(0.05, governor.limits)
    assert governor.transactional().wait == about(0.15)
    governor.advance(0.15)
    assert governor.transactional().granted


def test_a_very_late_request_costs_two_tokens_at_the_most(governor: TimedGovernor) -> None:
    governor.transactional()
    governor.late(60, governor.limits)
    assert governor.transactional().wait == about(0.2)


def test_an_absurd_refill_is_a_wait_of_a_day_and_not_of_minus_nine_trillion_seconds(governor: TimedGovernor) -> None:
    governor.limits = Limits(Bucket(1, 1e-14))
    governor.transactional()
    assert governor.transactional().wait == 86_400
    assert governor.marketing(want(1, bucket=Bucket(1, 1e-14))).wait <= 86_400
