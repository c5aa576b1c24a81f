"""The retry budget between the rails: neither starves the other."""

from collections import Counter

from core.governor.client import RETRY_SHARE, TRICKLE_SHARE, Bucket, Event, Limits
from tests.core.governor.day import START, Asker, spend
from tests.core.governor.rig import TimedGovernor, about


def test_marketing_s_repetitions_trickle_while_the_other_rail_uses_the_budget_for_hours() -> None:
    """Both always have something to repeat. A quarter of the budget is marketing's, and both together take no more than it."""
    limits = Limits(Bucket(1.2, 9.8))
    codes = Asker("transactional", limits, lambda now: (), replay=True)
    news = Asker("marketing", limits, lambda now: (), replay=True)
    hours = 3
    spend(hours * 3600, codes, news)
    hourly = Counter(int((at - START) / 3600) for at, _, _ in news.grants)
    budget = RETRY_SHARE * 9.8 * 3600
    assert all(hourly[hour] >= 0.97 * TRICKLE_SHARE * budget for hour in range(hours))
    assert len(codes.grants) >= 0.73 * budget * hours
    assert len(codes.grants) + len(news.grants) <= budget * hours + limits.retries.capacity + 2


def test_marketing_s_own_part_of_the_budget_is_one_at_a_time_and_a_debt_of_the_budget(governor: TimedGovernor) -> None:
    governor.limits = Limits(Bucket(100, 10))
    governor.transactional()
    governor.advance(60)
    while governor.ask("transactional", replay=True, retry=True).granted:
        pass
    assert governor.ask("marketing", replay=True, retry=True).granted
    own = governor.grant
    refused = governor.ask("marketing", replay=True, retry=True)
    assert (refused.reason, refused.wait) == ("retries", about(2)), "a quarter of two a second"
    assert governor.ask("transactional", replay=True, retry=True).wait == about(1), "of which one token is owed"
    governor.report(Event.NONE, own, rail="marketing", unused=True, retry=True)
    assert governor.ask("marketing", replay=True, retry=True).granted
