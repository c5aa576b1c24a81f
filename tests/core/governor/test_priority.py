"""The transactional rail first: the waiting mark, the reserve, a tenant's own mark."""

import pytest

from core.governor.client import MARK_SLACK, Bucket, Event, Limits
from tests.core.governor.rig import PLENTY, TimedGovernor, about, want

SMALL = Bucket(capacity=2, refill=1)


def test_who_misses_a_global_token_waits_exactly_for_the_next_one(governor: TimedGovernor) -> None:
    assert governor.transactional().granted
    refused = governor.transactional()
    assert (refused.granted, refused.reason, refused.wait) == (False, "global", about(0.1))
    governor.advance(refused.wait)
    assert governor.transactional().granted


def test_marketing_gets_nothing_until_the_token_of_a_waiting_transactional_batch_and_the_slack(
    governor: TimedGovernor,
) -> None:
    governor.marketing()
    assert governor.transactional().reason == "global"
    refused = governor.marketing()
    assert refused.reason == "transactional_waits"
    assert refused.wait == about(0.1 + MARK_SLACK)
    governor.advance(0.1)  # the token is there, but not for marketing
    assert governor.marketing().reason == "transactional_waits"
    governor.advance(MARK_SLACK)
    assert governor.marketing().granted, "a mark whose batch never came back must end by itself"


def test_a_transactional_grant_clears_the_waiting_mark(governor: TimedGovernor) -> None:
    governor.marketing()
    governor.transactional()
    governor.advance(0.1)
    assert governor.transactional().granted
    assert governor.marketing().reason == "global"
    governor.advance(0.1)
    assert governor.marketing().granted


def test_a_replay_on_the_transactional_rail_sets_and_clears_the_mark_too(governor: TimedGovernor) -> None:
    governor.marketing()
    assert governor.ask("transactional", replay=True).reason == "global"
    assert governor.marketing().reason == "transactional_waits"
    governor.advance(0.1)
    assert governor.ask("transactional", replay=True).granted
    assert governor.marketing().reason == "global"


def test_marketing_never_sets_the_waiting_mark(governor: TimedGovernor) -> None:
    governor.marketing()
    assert governor.marketing().reason == "global"
    governor.advance(0.1)
    assert governor.transactional().granted
    assert "mark" not in governor.state()


@pytest.mark.parametrize("missing", ["tenant", "quota", "circuit"])
def test_only_a_missing_global_token_sets_the_waiting_mark(governor: TimedGovernor, missing: str) -> None:
    """Missing because none is there, or because a block withholds it (test_governor_feedback)."""
    governor.limits = Limits(governor.limits.request, Bucket(1, 0.001) if missing == "quota" else None)
    one = Bucket(1, 0.001) if missing == "tenant" else PLENTY
    governor.transactional(want(bucket=one))
    governor.report(Event.CREDENTIAL if missing == "circuit" else Event.ACCEPTED)
    governor.advance(0.1)
    assert governor.transactional(want(bucket=one)).reason == missing
    assert float(governor.state().get("mark", 0)) == 0


def test_a_transactional_call_without_tenant_tokens_leaves_the_global_token_to_others(governor: TimedGovernor) -> None:
    empty = Bucket(1, 0.001)
    governor.transactional(want(1, bucket=empty))
    governor.advance(0.1)
    assert governor.transactional(want(1, bucket=empty)).reason == "tenant"
    assert governor.marketing(want(2)).granted


def test_the_reserve_is_only_for_the_transactional_rail(governor: TimedGovernor) -> None:
    governor.limits = Limits(Bucket(3.204, 10, reserve=2))
    governor.transactional()
    governor.advance(1)  # full: 3 at once
    assert governor.marketing().granted
    refused = governor.marketing()
    assert (refused.reason, refused.wait) == ("global", about(0.1))
    assert governor.transactional().granted
    assert governor.transactional().granted


def test_marketing_alone_gets_its_first_token_in_spite_of_a_reserve(governor: TimedGovernor) -> None:
    """The level starts at one token, which the reserve holds back: it must grow although nobody is granted anything."""
    governor.limits = Limits(Bucket(2, 10, reserve=1))
    refused = governor.marketing()
    assert refused.reason == "global"
    governor.advance(refused.wait)
    assert governor.marketing().granted


def test_a_tenants_reserve_is_kept_for_its_transactional_sends(governor: TimedGovernor) -> None:
    bucket = Bucket(10, 1, reserve=4)
    assert governor.marketing(want(sends=100, bucket=bucket)).shares == (6,)
    governor.advance(0.1)
    starved = governor.marketing(want(bucket=bucket))
    assert (starved.reason, starved.starved) == ("tenant", (about(0.9),))
    assert governor.transactional(want(sends=100, bucket=bucket)).shares == (4,)


def test_a_tenant_without_tokens_is_starved_and_the_others_go_on(governor: TimedGovernor) -> None:
    governor.transactional(want(1, 2, bucket=SMALL))
    governor.advance(0.1)
    decision = governor.transactional(want(1, 1, bucket=SMALL), want(2, 3))
    assert (decision.granted, decision.shares) == (True, (0, 3))
    assert decision.starved == (about(0.9), 0)


def test_the_wait_of_a_call_is_the_shortest_starvation(governor: TimedGovernor) -> None:
    slow = Bucket(2, 0.1)
    governor.transactional(want(1, 2, bucket=slow), want(2, 2, bucket=SMALL))
    governor.advance(0.1)
    refused = governor.transactional(want(1, bucket=slow), want(2, bucket=SMALL))
    assert refused.reason == "tenant"
    assert refused.wait == min(refused.starved) == about(0.9)


def test_a_tenants_marketing_waits_for_its_own_transactional_send(governor: TimedGovernor) -> None:
    governor.transactional(want(1, 2, bucket=SMALL))
    governor.advance(0.1)
    governor.transactional(want(1, 1, bucket=SMALL))  # starved for 0.9 s: its mark ends 1 s after that
    governor.advance(1.0)
    refused = governor.marketing(want(1, 1, bucket=SMALL))
    assert (refused.reason, refused.wait) == ("tenant", about(0.9))
    assert governor.marketing(want(1, 1, bucket=SMALL), want(2, 1)).shares == (0, 1)
    governor.advance(0.1)
    assert governor.transactional(want(1, 1, bucket=SMALL)).granted
    governor.advance(1.0)
    assert governor.marketing(want(1, 1, bucket=SMALL)).granted, "the served transactional send cleared the mark"


def test_a_tenants_mark_ends_by_itself(governor: TimedGovernor) -> None:
    governor.transactional(want(1, 2, bucket=SMALL))
    governor.transactional(want(1, 1, bucket=SMALL))
    governor.advance(2.0)
    assert governor.marketing(want(1, 1, bucket=SMALL)).granted


def test_a_want_that_its_tenants_tokens_cover_only_in_part_marks_it_too(governor: TimedGovernor) -> None:
    bucket = Bucket(2, 10)
    assert governor.transactional(want(1, 3, bucket=bucket)).shares == (2,)
    governor.advance(0.5)  # full again, and the mark still lasts
    refused = governor.marketing(want(1, 1, bucket=bucket))
    assert (refused.reason, refused.wait) == ("tenant", about(0.5))


def test_a_want_that_only_the_batch_has_no_room_for_does_not_mark_its_tenant(governor: TimedGovernor) -> None:
    assert governor.ask("transactional", want(1, 100), max_batch=10).shares == (10,)
    governor.advance(0.1)
    assert governor.marketing(want(1)).granted


def test_a_tenant_is_marked_even_if_the_call_then_waits_for_a_global_token(governor: TimedGovernor) -> None:
    bucket = Bucket(2, 10)
    governor.marketing(want(2))
    assert governor.transactional(want(1, 3, bucket=bucket)).reason == "global"
    governor.advance(0.1)
    governor.transactional(want(2))
    governor.advance(0.1)
    assert governor.marketing(want(1, 1, bucket=bucket)).reason == "tenant"


def test_marketing_does_not_mark_its_tenant(governor: TimedGovernor) -> None:
    bucket = Bucket(2, 10)
    for _ in range(2):
        assert governor.marketing(want(1, 3, bucket=bucket)).shares == (2,)
        governor.advance(0.2)


def test_often_repeated_refusals_do_not_keep_a_slow_tenant_from_filling_up(governor: TimedGovernor) -> None:
    """Its mark is written each time, and 0.4 µtokens come in between: less than the last decimal of a level."""
    slow = Bucket(1, 0.000_4)
    governor.transactional(want(1, bucket=slow))
    for _ in range(500):
        governor.advance(0.001)
        assert governor.transactional(want(1, bucket=slow)).reason == "tenant"
    assert governor.transactional(want(1, bucket=slow)).wait == pytest.approx(2_499.5, abs=0.001)


def test_priorities_share_a_tenants_tokens_in_their_order(governor: TimedGovernor) -> None:
    bucket = Bucket(5, 1)
    decision = governor.transactional(want(1, 4, 1, bucket), want(1, 3, 0, bucket), want(2, 2, 1))
    assert decision.shares == (2, 3, 2)


# Quota


def test_what_comes_back_of_a_used_up_quota_is_the_transactional_rail_s(governor: TimedGovernor) -> None:
    """Also without a reserve, and for as long as it asks."""
    governor.limits = Limits(Bucket(100, 100), Bucket(10, 0.5))
    governor.advance(10)
    assert sum(governor.marketing(want(sends=10)).shares) == 10
    for _ in range(4):
        assert governor.transactional().reason == governor.marketing().reason == "quota"
        governor.advance(0.5)
    assert governor.marketing().reason == "quota", "there is one, and it is not marketing's"
    assert governor.transactional().granted
    governor.advance(2)
    assert governor.marketing().granted


def test_a_quota_that_is_used_up_holds_no_repetition_back(governor: TimedGovernor) -> None:
    governor.limits = Limits(Bucket(100, 100), Bucket(1, 0.001))
    governor.transactional()
    governor.transactional()
    governor.advance(1)
    assert governor.ask("marketing", replay=True, batch="x").granted
