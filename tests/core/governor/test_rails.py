"""A tenant's buckets of one rail each, and what a flood beyond one of them costs everybody else: nothing."""

from collections import Counter

import pytest

from core.governor.client import Bucket, Event, Limits, Want
from tests.core.governor.day import START, Asker, half, spend
from tests.core.governor.model import Model
from tests.core.governor.rig import PLENTY, TimedGovernor, about, want

CODES = Bucket(2, 1, rail="transactional")
NEWS = Bucket(5, 1, rail="marketing")
LIMITS = Limits(Bucket(1.2, 9.8))
A, B = 1, 2


def test_a_bucket_of_a_rail_has_a_level_of_its_own(governor: TimedGovernor) -> None:
    assert governor.marketing(want(A, 9, bucket=NEWS)).shares == (5,)
    governor.advance(0.1)
    assert governor.transactional(want(A, 9, bucket=CODES)).shares == (2,)
    assert {name: tokens for name, (tokens, _, _) in governor.levels().items()} == {
        "1:marketing": 0,
        "1:transactional": 0,
    }


def test_one_rail_s_own_bucket_and_one_that_is_for_what_no_row_names(governor: TimedGovernor) -> None:
    both = Bucket(5, 1)
    governor.marketing(want(A, 9, bucket=both))
    governor.advance(0.1)
    assert governor.transactional(want(A, 9, bucket=CODES)).shares == (2,)
    assert set(governor.levels()) == {"1", "1:transactional"}


def test_lack_of_tokens_of_one_rail_marks_nothing_of_the_other(governor: TimedGovernor) -> None:
    governor.transactional(want(A, 2, bucket=CODES))
    governor.advance(0.1)
    assert governor.transactional(want(A, 1, bucket=CODES)).reason == "tenant"
    assert governor.marketing(want(A, 3, bucket=NEWS)).shares == (3,)
    assert float(governor.state().get("mark", 0)) == 0
    assert all(mark == 0 for _, _, mark in governor.levels().values())


def test_what_was_not_sent_goes_back_to_the_level_that_it_came_from(governor: TimedGovernor) -> None:
    governor.marketing(want(A, 5, bucket=NEWS))
    news = governor.grant
    governor.advance(0.1)
    governor.transactional(want(A, 2, bucket=CODES))
    governor.report(Event.ACCEPTED, back=((A, 1, CODES),))
    governor.report(Event.ACCEPTED, news, rail="marketing", back=((A, 4, NEWS),))
    assert {name: tokens for name, (tokens, _, _) in governor.levels().items()} == {
        "1:marketing": 4,
        "1:transactional": 1,
    }


@pytest.mark.parametrize("bucket", [CODES, NEWS, Bucket(2, 1)], ids=["transactional", "marketing", "both"])
def test_a_level_grows_again_though_the_clock_went_back(governor: TimedGovernor, bucket: Bucket) -> None:
    rail = bucket.rail or "transactional"
    governor.ask(rail, want(A, 9, bucket=bucket))
    governor.advance(-3600)
    assert not governor.ask(rail, want(A, bucket=bucket)).granted
    governor.advance(0.2)
    assert governor.ask(rail, want(A, bucket=bucket)).reason == "tenant"
    governor.advance(1)
    assert governor.ask(rail, want(A, bucket=bucket)).granted


# Worth a request


def test_who_is_beyond_its_bucket_leaves_in_full_batches(governor: TimedGovernor) -> None:
    """And not with each few tokens that have come back: requests are what is scarce."""
    bucket = Bucket(490, 490, rail="transactional")
    governor.limits = Limits(Bucket(40, 1000))
    governor.advance(1)
    governor.transactional(want(B))
    governor.advance(1)
    for share in (100, 100, 100, 100):
        assert governor.transactional(want(A, 100, 1, bucket)).shares == (share,)
    refused = governor.transactional(want(A, 100, 1, bucket))
    assert (refused.reason, refused.wait) == ("tenant", about(10 / 490))
    governor.advance(refused.wait)
    assert governor.transactional(want(A, 100, 1, bucket)).shares == (100,)
    refused = governor.transactional(want(A, 100, 1, bucket))
    assert (refused.wait, refused.starved) == (about(100 / 490), (about(1 / 490),))


def test_a_slow_bucket_is_not_made_to_wait_for_more_than_a_second(governor: TimedGovernor) -> None:
    slow = Bucket(100, 7, rail="transactional")
    governor.transactional(want(A, 100, bucket=slow))
    refused = governor.transactional(want(A, 100, bucket=slow))
    assert (refused.reason, refused.wait) == ("tenant", about(1))
    governor.advance(1)
    assert governor.transactional(want(A, 100, bucket=slow)).shares == (7,)


def test_what_it_has_rides_along_with_another_s_request(governor: TimedGovernor) -> None:
    bucket = Bucket(100, 50, rail="transactional")
    governor.transactional(want(A, 100, 1, bucket))
    governor.advance(0.5)
    assert governor.transactional(want(A, 100, 1, bucket)).reason == "tenant"
    assert governor.transactional(want(A, 100, 1, bucket), want(B, 2, 0)).shares == (25, 2)


def test_its_own_login_codes_do_not_wait_for_its_product_mail(governor: TimedGovernor) -> None:
    bucket = Bucket(100, 50, rail="transactional")
    governor.transactional(want(A, 100, 1, bucket))
    governor.advance(0.1)
    decision = governor.transactional(want(A, 100, 1, bucket), want(A, 3, 0, bucket))
    assert (decision.granted, decision.shares) == (True, (2, 3))


# A flood


def flooded(now: float) -> tuple[Want, ...]:
    return (Want(A, 1, 100, half(LIMITS)),)


def test_one_tenant_s_flood_of_product_mail_leaves_the_other_half_to_marketing() -> None:
    """A minute, in which everybody always has something: the flooding tenant's marketing and a stranger's, evenly."""
    flood = Asker("transactional", LIMITS, flooded)
    news = Asker("marketing", LIMITS, lambda now: (Want(A, 2, 100, PLENTY), Want(B, 2, 100, PLENTY)))
    model = spend(60, flood, news)
    requests = Counter({"transactional": len(flood.grants), "marketing": len(news.grants)})
    assert requests.total() >= 0.97 * 9.8 * 60, "and nothing of the limit is left unused"
    assert requests["transactional"] <= (490 + 490 * 60) / 100 + 1, "no request more than its share fills"
    assert requests["marketing"] >= 0.47 * requests.total()
    assert flood.sends(A) >= 0.98 * 490 * 60
    assert abs(news.sends(A) - news.sends(B)) <= 100
    assert news.reasons["tenant"] == 0
    assert not model.tenant_marks


def test_login_codes_do_not_notice_another_tenant_s_flood_nor_their_own() -> None:
    """A code of A and one of B every 0.7 s, a blast of B's beside: each has the next token, as without the flood."""
    comes = [START + 0.7 * n + 0.013 for n in range(80)]

    class Codes(Asker):
        waiting: tuple[Want, ...] = ()
        waits: list[float] = []

        def ask(self, model: Model, grant: str, now: float) -> None:
            if comes and comes[0] <= now:
                self.waiting, self.came = tuple(Want(tenant, 0, 1, half(LIMITS)) for tenant in (A, B)), comes.pop(0)
            super().ask(model, grant, now)
            if self.waiting and self.grants[-1][0] == now:
                assert self.grants[-1][1].shares[:2] == (1, 1)
                self.waits.append(now - self.came)
                self.waiting = ()

    codes = Codes("transactional", LIMITS, lambda now: codes.waiting + flooded(now), wake=tuple(comes))
    news = Asker("marketing", LIMITS, lambda now: (Want(B, 2, 100, PLENTY),))
    spend(60, codes, news)
    assert len(codes.waits) == 80
    assert max(codes.waits) <= 1 / 9.8 + 0.001
    assert len(news.grants) >= 0.3 * 9.8 * 60
