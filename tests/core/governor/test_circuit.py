"""The circuit: what opens it, who may probe and when, what closes it."""

import pytest

from core.governor.client import CLAIM_TTL, PERMIT_TTL, PROBE_GRACE, Bucket, Event, Limits, Refusal, Settled
from tests.core.governor.rig import TimedGovernor, about, want

#: With the middle jitter, the first probe comes 0.75 s after opening.
FIRST_PROBE = 0.75


def fail(governor: TimedGovernor, *batches: str, of: tuple[str, ...] = ()) -> Settled:
    """Requests for these batches, with sends of these tenants, fail; 100 ms each, so that there is a token again."""
    for batch in batches:
        assert governor.ask("transactional", batch=batch).granted
        settled = governor.report(Event.FAILED, batch=batch, failed_for=of)
        governor.advance(0.1)
    return settled


@pytest.fixture
def broken(governor: TimedGovernor) -> TimedGovernor:
    """The circuit has just opened."""
    governor.limits = Limits(Bucket(1, 10))
    assert fail(governor, "a", "b", "c").opened
    governor.us -= 100_000
    return governor


def wait(governor: TimedGovernor, rail: str = "transactional", batch: str = "", replay: bool = False) -> float:
    refused = governor.ask(rail, batch=batch, replay=replay)
    assert (refused.granted, refused.reason) == (False, "circuit")
    return refused.wait


def test_three_different_batches_that_fail_in_a_row_open_it(governor: TimedGovernor) -> None:
    assert not fail(governor, "a", "b").opened
    settled = fail(governor, "c")
    assert (settled.circuit, settled.opened, settled.closed) == ("unreachable", True, False)
    assert governor.transactional().reason == governor.marketing().reason == "circuit"


def test_one_batch_that_fails_often_does_not(governor: TimedGovernor) -> None:
    assert fail(governor, "a", "a", "a", "b", "a", "b").circuit == ""


@pytest.mark.parametrize("event", [Event.ACCEPTED, Event.ANSWERED, Event.REFUSED, Event.RATE_LIMITED])
def test_any_answer_in_between_ends_the_run(governor: TimedGovernor, event: Event) -> None:
    fail(governor, "a", "b")
    governor.transactional()
    governor.report(event, retry_after=1)
    governor.advance(1)
    assert fail(governor, "c", "d").circuit == ""


def test_work_that_was_gone_says_nothing_about_the_provider(governor: TimedGovernor) -> None:
    fail(governor, "a", "b")
    governor.transactional()
    governor.report(Event.NONE)
    governor.advance(0.1)
    assert fail(governor, "c").opened


@pytest.mark.parametrize("batches", [3, 5, 7])
def test_what_has_one_cause_is_not_the_provider_s_trouble(governor: TimedGovernor, batches: int) -> None:
    """Batches of one tenant fail on a system on which nobody else sends: a stranger's code leaves at once."""
    governor.limits = Limits(Bucket(1, 10))
    assert fail(governor, *"abcdefg"[:batches], of=("1",)).circuit == ""
    decision = governor.ask("transactional", want(2))
    assert (decision.granted, decision.probe) == (True, False)


def test_three_tenants_failures_open_at_the_third(governor: TimedGovernor) -> None:
    assert fail(governor, "a", of=("1",)).circuit == ""
    assert fail(governor, "b", of=("2",)).circuit == ""
    assert fail(governor, "c", of=("3",)).opened


def test_three_causes_open(governor: TimedGovernor) -> None:
    governor.limits = Limits(Bucket(1, 10))
    fail(governor, "a", of=("1", "2", "3"))
    fail(governor, "b", of=("3", "4"))
    fail(governor, "c", of=("4", "5"))
    assert fail(governor, "d", of=("3",)).circuit == "", "3 may be the cause of two, and 4 of the others"
    assert fail(governor, "e", of=("6",)).opened


@pytest.fixture
def suspecting(governor: TimedGovernor) -> TimedGovernor:
    """Its circuit is open, since eight batches of tenant 1 have failed."""
    governor.limits = Limits(Bucket(1, 10))
    assert fail(governor, *"abcdefg", of=("1",)).circuit == ""
    assert fail(governor, "h", of=("1",)).opened
    return governor


def _probe_fails(governor: TimedGovernor, tenant: int) -> None:
    """The probe that this tenant is let through for, as soon as it may."""
    decision = governor.ask("transactional", want(tenant), batch=f"of-{tenant}")
    if not decision.granted:
        governor.advance(decision.wait)
        decision = governor.ask("transactional", want(tenant), batch=f"of-{tenant}")
    assert decision.probe
    governor.report(Event.FAILED, batch=f"of-{tenant}", failed_for=(str(tenant),))


@pytest.mark.parametrize("probes", [0, 1, 5, 12])
def test_a_stranger_does_not_wait_for_the_probes_of_those_who_may_be_the_cause(
    suspecting: TimedGovernor, probes: int
) -> None:
    for _ in range(probes):
        _probe_fails(suspecting, 1)
    refused = suspecting.ask("transactional", want(1))
    pause = 0.75 * min(15, 2.0**probes) + PROBE_GRACE if probes else 0.65  # a tenth of a second ago
    assert (refused.reason, refused.wait) == ("suspected", about(pause))
    stranger = suspecting.ask("transactional", want(1, sends=9), want(2))
    assert (stranger.granted, stranger.reason) == (False, "circuit")
    assert stranger.wait == about(1 if probes else 0.65)
    suspecting.advance(stranger.wait)
    decision = suspecting.ask("transactional", want(1, sends=9), want(2))
    assert (decision.probe, decision.shares) == (True, (0, 1))
    assert suspecting.report(Event.ACCEPTED).closed


def test_marketing_s_strangers_come_after_codes(suspecting: TimedGovernor) -> None:
    for _ in range(5):
        _probe_fails(suspecting, 1)
    assert suspecting.ask("marketing", want(2)).wait == about(1 + 2 * PROBE_GRACE)
    suspecting.advance(1 + 2 * PROBE_GRACE)
    assert suspecting.ask("marketing", want(2)).probe


def test_a_probe_that_hangs_keeps_a_stranger_for_its_permit_alone(suspecting: TimedGovernor) -> None:
    for _ in range(5):
        _probe_fails(suspecting, 1)
    suspecting.advance(60)
    assert suspecting.ask("transactional", want(1)).probe
    suspecting.leaves(suspecting.grant)
    assert suspecting.ask("transactional", want(2)).wait == about(PERMIT_TTL)
    suspecting.advance(PERMIT_TTL)
    assert suspecting.ask("transactional", want(2)).probe


def test_who_only_shared_a_batch_with_the_cause_is_a_stranger_once_it_has_failed_without_them(
    governor: TimedGovernor,
) -> None:
    governor.limits = Limits(Bucket(1, 10))
    fail(governor, "a", of=("1", "2", "3"))
    fail(governor, *"bcdefg", of=("1", "2"))
    assert fail(governor, "h", of=("1", "2")).opened
    _probe_fails(governor, 1)
    for tenant, wait_for in ((1, 1.5 + PROBE_GRACE), (2, 1.0), (3, 1.0)):
        assert governor.ask("transactional", want(tenant)).wait == about(wait_for)


def test_when_eight_causes_have_failed_it_is_the_provider_and_nobody_a_stranger(suspecting: TimedGovernor) -> None:
    """And what is kept of it does not grow, nor comes back before somebody is answered."""
    for tenant in range(2, 8):
        _probe_fails(suspecting, tenant)
    assert suspecting.ask("transactional", want(99)).wait == about(1)
    _probe_fails(suspecting, 8)
    for tenant in (9, 9, 10):
        refused = suspecting.ask("transactional", want(99))
        assert (refused.reason, refused.wait) == ("circuit", about(11.25 + PROBE_GRACE))
        assert suspecting.state()["run_for"] == ""
        _probe_fails(suspecting, tenant)


def test_what_never_left_is_the_provider_s_trouble_at_once(suspecting: TimedGovernor) -> None:
    suspecting.advance(60)
    assert suspecting.ask("transactional", want(2)).probe
    suspecting.report(Event.FAILED)
    assert suspecting.ask("transactional", want(3)).wait == about(1.5 + PROBE_GRACE)


def test_a_single_tenant_s_outage_is_probed_like_any_other(suspecting: TimedGovernor) -> None:
    for n in range(1, 8):
        _probe_fails(suspecting, 1)
        assert suspecting.ask("transactional", want(1)).wait == about(0.75 * min(2.0**n, 15) + PROBE_GRACE)


def test_a_refused_key_opens_it_at_once(governor: TimedGovernor) -> None:
    governor.transactional()
    assert governor.report(Event.CREDENTIAL).circuit == "credential"


def test_a_long_outage_does_not_make_the_state_grow(broken: TimedGovernor) -> None:
    fields = {}
    for _ in range(20):
        broken.advance(60)
        assert broken.transactional().probe
        broken.report(Event.FAILED)
        fields = {name: len(value) for name, value in broken.state().items()}
    assert fields["run"] == 0
    assert sum(fields.values()) < 200


# Probes


def test_nothing_is_sent_until_the_first_probe(broken: TimedGovernor) -> None:
    assert wait(broken) == about(FIRST_PROBE)
    broken.advance(FIRST_PROBE)
    probe = broken.transactional()
    assert (probe.granted, probe.probe) == (True, True)


def test_a_probe_takes_a_global_token_like_any_request(broken: TimedGovernor) -> None:
    spent = broken.spent()
    broken.advance(FIRST_PROBE)
    broken.transactional()
    assert (broken.tokens(), broken.spent()) == (0, spent + 1)


def test_there_is_one_probe_at_a_time(broken: TimedGovernor) -> None:
    broken.advance(60)
    assert broken.transactional().probe
    probe = broken.grant
    for seconds in (CLAIM_TTL, PERMIT_TTL):
        for rail, replay in (("transactional", False), ("transactional", True), ("marketing", False)):
            assert wait(broken, rail, replay=replay) == about(seconds)
        broken.leaves(probe)


def test_a_probe_that_vanished_keeps_nobody_waiting_for_long(broken: TimedGovernor) -> None:
    """Its worker froze, or the provider hangs on it: it counts as one that failed when its permit ends."""
    broken.advance(FIRST_PROBE)
    assert broken.transactional().probe
    pauses = []
    for replay in (True, False, True, False, True):
        broken.leaves(broken.grant)
        broken.advance(PERMIT_TTL)
        pauses.append(wait(broken, replay=replay))
        broken.advance(pauses[-1])
        assert broken.ask("transactional", replay=replay).probe
    assert pauses == [about(seconds) for seconds in (1.5, 3, 6, 11.25, 11.25)]
    assert PERMIT_TTL <= 3


def test_a_probe_whose_worker_froze_before_its_request_left_has_not_failed(broken: TimedGovernor) -> None:
    """Whoever has something to send is the next probe, however often that happens: the provider was asked nothing."""
    broken.advance(FIRST_PROBE)
    assert broken.transactional().probe
    for replay in (False, True, True, False, False):
        assert wait(broken, replay=replay) == about(CLAIM_TTL)
        broken.advance(CLAIM_TTL)
        assert broken.ask("transactional", replay=replay).probe
    assert CLAIM_TTL <= 1
    broken.leaves(broken.grant)
    broken.report(Event.FAILED)
    assert broken.state()["probe_n"] == "1"


def test_one_that_comes_back_when_another_one_probes_takes_nothing_from_it(broken: TimedGovernor) -> None:
    broken.advance(FIRST_PROBE)
    broken.transactional()
    frozen = broken.grant
    broken.advance(CLAIM_TTL)
    assert broken.transactional().probe
    broken.leaves(frozen)
    broken.report(Event.NONE, grant=frozen, unused=True)
    assert wait(broken) == about(CLAIM_TTL)


def test_a_probe_that_fails_doubles_the_pause_up_to_a_quarter_of_a_minute(broken: TimedGovernor) -> None:
    broken.jitter = 1.0
    pauses = []
    for _ in range(7):
        broken.advance(60)
        assert broken.transactional().probe
        assert broken.report(Event.FAILED).circuit == "unreachable"
        pauses.append(wait(broken) - PROBE_GRACE)  # not its turn: the other kind is
    assert pauses == [about(seconds) for seconds in (2, 4, 8, 15, 15, 15, 15)]


def test_a_probe_whose_work_was_gone_lets_the_next_one_go_at_once(broken: TimedGovernor) -> None:
    broken.advance(FIRST_PROBE + PROBE_GRACE)
    probe = broken.transactional()
    broken.report(Event.NONE, epoch=probe.epoch, unused=True)
    assert broken.transactional().probe


def test_a_late_answer_of_another_request_leaves_the_permit_alone(broken: TimedGovernor) -> None:
    broken.advance(FIRST_PROBE)
    broken.transactional()
    broken.report(Event.FAILED, grant="somebody-else")
    assert wait(broken) == about(CLAIM_TTL)


def test_due_work_and_replays_take_turns(broken: TimedGovernor) -> None:
    """The kind whose turn it is goes at once, the other kind only if nobody came within the grace."""
    broken.advance(FIRST_PROBE)
    assert wait(broken, replay=True, batch="x") == about(PROBE_GRACE)
    assert broken.transactional().probe
    broken.report(Event.FAILED)
    pause = 1.5
    assert wait(broken) == about(pause + PROBE_GRACE)
    assert wait(broken, replay=True, batch="x") == about(pause)
    broken.advance(pause)
    assert broken.ask("transactional", replay=True, batch="x").probe
    broken.report(Event.FAILED, batch="x")
    assert wait(broken) == about(3)


def test_a_kind_with_nothing_to_send_does_not_hold_up_the_other(broken: TimedGovernor) -> None:
    broken.advance(FIRST_PROBE)
    assert broken.transactional().probe
    broken.report(Event.FAILED)
    broken.advance(1.5 + PROBE_GRACE)
    assert broken.transactional().probe


def test_marketing_probes_last_but_does_not_wait_forever(broken: TimedGovernor) -> None:
    assert wait(broken, "marketing") == about(FIRST_PROBE + 2 * PROBE_GRACE)
    broken.advance(FIRST_PROBE + 2 * PROBE_GRACE)
    assert broken.marketing().probe


def test_the_batch_that_just_probed_comes_again_only_if_there_is_nothing_else(broken: TimedGovernor) -> None:
    broken.advance(FIRST_PROBE + PROBE_GRACE)
    assert broken.ask("transactional", replay=True, batch="x").probe
    broken.report(Event.FAILED, batch="x")
    pause = 1.5
    assert wait(broken, replay=True, batch="y") == about(pause + PROBE_GRACE)
    assert wait(broken, replay=True, batch="x") == about(pause + 2 * PROBE_GRACE)
    broken.advance(pause + 2 * PROBE_GRACE)
    assert broken.ask("transactional", replay=True, batch="x").probe


@pytest.mark.parametrize("only", ["due", "marketing", "replay of one batch"])
def test_with_only_one_sort_of_work_an_outage_still_ends(broken: TimedGovernor, only: str) -> None:
    """Never a deadlock: whoever waits as told gets its probe, again and again, and closes the circuit at last."""
    for attempt in range(12):
        for _ in range(3):
            decision = broken.ask(
                "marketing" if only == "marketing" else "transactional",
                replay=only == "replay of one batch",
                batch="x" if only == "replay of one batch" else "",
            )
            if decision.granted:
                break
            broken.advance(decision.wait)
        assert decision.probe
        settled = broken.report(Event.FAILED if attempt < 11 else Event.ACCEPTED, batch="x")
    assert settled.closed


def test_a_refused_key_does_not_start_an_outage_afresh(broken: TimedGovernor) -> None:
    broken.advance(60)
    assert broken.transactional().probe
    settled = broken.report(Event.CREDENTIAL)
    assert (settled.circuit, settled.opened) == ("unreachable", False)
    assert wait(broken) == about(1.5 + PROBE_GRACE)


# Closing


@pytest.mark.parametrize("event", [Event.ACCEPTED, Event.ANSWERED, Event.REFUSED, Event.RATE_LIMITED, Event.QUOTA])
def test_an_answer_of_the_provider_closes_an_unreachable_circuit(broken: TimedGovernor, event: Event) -> None:
    broken.advance(FIRST_PROBE)
    broken.transactional()
    settled = broken.report(event, retry_after=1)
    assert (settled.circuit, settled.opened, settled.closed) == ("", False, True)
    broken.advance(1)
    decision = broken.marketing()
    assert (decision.granted, decision.probe) == (True, False)
    broken.advance(0.1)
    assert fail(broken, "x", "y").circuit == "", "the run that opened it is forgotten"


def test_a_late_acceptance_closes_it_without_a_probe(broken: TimedGovernor) -> None:
    assert broken.report(Event.ACCEPTED, grant="from-before").closed


@pytest.mark.parametrize(
    ("event", "closes"),
    [
        (Event.ACCEPTED, True),
        (Event.ANSWERED, True),
        (Event.RATE_LIMITED, False),  # a provider may count requests before it looks at the key
        (Event.REFUSED, False),  # and may read the request before it does
        (Event.FORBIDDEN, False),
        (Event.FAILED, False),
        (Event.CREDENTIAL, False),
    ],
)
def test_a_refused_key_is_in_order_again_when_the_provider_answers_for_it(
    governor: TimedGovernor, event: Event, closes: bool
) -> None:
    governor.transactional()
    governor.report(Event.CREDENTIAL)
    governor.advance(FIRST_PROBE)
    assert governor.transactional().probe
    settled = governor.report(event, retry_after=1)
    assert (settled.closed, settled.circuit) == (closes, "" if closes else "credential")


# Contents that are refused


def refuse(
    governor: TimedGovernor,
    *names: int | str,
    rail: str = "transactional",
    code: str = "invalid",
    event: Event = Event.REFUSED,
) -> Settled:
    """Requests are refused, each for one of its names (`"a,b"`: of two)."""
    for name in names:
        assert governor.ask(rail).granted
        settled = governor.report(event, rail=rail, refused=Refusal(code, tuple(str(name).split(","))))
        governor.advance(0.1)
    return settled


@pytest.mark.parametrize("rail", ["transactional", "marketing"])
def test_three_tenants_whose_contents_are_refused_alike_open_it(governor: TimedGovernor, rail: str) -> None:
    assert refuse(governor, 1, 2, 1, 2, rail=rail).circuit == ""
    settled = refuse(governor, 3, rail=rail)
    assert (settled.circuit, settled.opened) == ("refusing", True)
    assert wait(governor, rail) > 0


def test_refusals_with_different_codes_are_the_contents_own(governor: TimedGovernor) -> None:
    refuse(governor, 1, 2)
    refuse(governor, 3, code="too_large")
    assert refuse(governor, 4, 5).circuit == ""
    assert refuse(governor, 6).circuit == "refusing"


@pytest.mark.parametrize("event", [Event.REFUSED, Event.FORBIDDEN])
@pytest.mark.parametrize("rail", ["transactional", "marketing"])
def test_an_acceptance_between_refusals_of_its_rail_keeps_it_closed(
    governor: TimedGovernor, rail: str, event: Event
) -> None:
    refuse(governor, 1, 2, rail=rail, event=event)
    governor.ask(rail)
    governor.report(Event.ACCEPTED, rail=rail)
    governor.advance(0.1)
    assert refuse(governor, 3, 4, rail=rail, event=event).circuit == ""


@pytest.mark.parametrize(("rail", "other"), [("transactional", "marketing"), ("marketing", "transactional")])
def test_an_acceptance_on_the_other_rail_says_nothing_of_this_one(
    governor: TimedGovernor, rail: str, other: str
) -> None:
    """A code is accepted every quarter of a second: marketing's refusals would never be counted."""
    for tenant in (1, 2, 3):
        settled = refuse(governor, tenant, rail=rail)
        governor.ask(other)
        governor.report(Event.ACCEPTED, rail=other)
        governor.advance(0.1)
    assert settled.opened


@pytest.mark.parametrize("event", [Event.ANSWERED, Event.RATE_LIMITED, Event.FAILED])
def test_what_is_no_acceptance_does_not_end_the_run_of_refusals(governor: TimedGovernor, event: Event) -> None:
    refuse(governor, 1, 2)
    governor.transactional()
    governor.report(event, retry_after=1)
    governor.advance(1.1)
    assert refuse(governor, 3).opened


@pytest.mark.parametrize(
    ("refused", "opens"),
    [
        (["a,b,c,d,e,f", "a,b", "c,d", "e,f"], True),
        (["a,b,c,d", "a,b", "c,d", "a"], False),
        (["a,b,c,d", "a,b", "c,d", "a", "b"], True),
        (["a,b,c,d", "a,b", "a", "b", "a,b"], False),
        (["a,b", "b,c", "c,d", "d,e"], False),
        (["a,b", "b,c", "c,d", "e"], True),
    ],
)
def test_refusals_count_as_different_if_they_have_no_name_in_common(
    governor: TimedGovernor, refused: list[str], opens: bool
) -> None:
    """Which of its names a request was refused for is not known; two without one in common have two causes."""
    assert refuse(governor, *refused, event=Event.FORBIDDEN).opened is opens


def test_a_refusal_of_a_mixed_or_suspected_request_says_nothing(governor: TimedGovernor) -> None:
    refuse(governor, 1, 2)
    governor.transactional()
    governor.report(Event.REFUSED)
    governor.advance(0.1)
    assert refuse(governor, 1).circuit == ""


def test_marketing_contents_never_close_the_transactional_rail(governor: TimedGovernor) -> None:
    refuse(governor, 1, 2, 3, rail="marketing")
    decision = governor.transactional()
    assert (decision.granted, decision.probe) == (True, False)
    settled = governor.report(Event.REFUSED)
    assert settled.circuit == "", "the transactional rail does not see it"
    governor.advance(0.1)
    assert governor.state()["circuit_rail"] == "marketing"
    governor.transactional()
    settled = governor.report(Event.ACCEPTED)
    assert not settled.closed, "it says nothing of what marketing sends"
    governor.advance(1)
    assert governor.marketing().probe
    assert governor.report(Event.ACCEPTED, rail="marketing").closed


def test_marketing_contents_and_codes_are_counted_apart(governor: TimedGovernor) -> None:
    refuse(governor, 1, 2, rail="marketing")
    assert refuse(governor, 3).circuit == ""
    assert refuse(governor, 4).circuit == ""
    assert refuse(governor, 5).circuit == "refusing"
    assert governor.state()["circuit_rail"] == ""


def test_marketing_s_circuit_gives_way_to_one_for_both_rails(governor: TimedGovernor) -> None:
    refuse(governor, 1, 2, 3, rail="marketing")
    settled = fail(governor, "a", "b", "c")
    assert (settled.circuit, settled.opened) == ("unreachable", True)
    assert governor.state()["circuit_rail"] == ""


def test_marketing_probes_its_own_circuit_as_soon_as_it_may(governor: TimedGovernor) -> None:
    refuse(governor, 1, 2, 3, rail="marketing")
    governor.us -= 100_000
    assert wait(governor, "marketing") == about(FIRST_PROBE)
    governor.advance(FIRST_PROBE)
    assert governor.marketing().probe
    settled = governor.report(Event.REFUSED, rail="marketing", refused=Refusal("invalid", ("4",)))
    assert (settled.circuit, settled.closed) == ("refusing", False)


@pytest.mark.parametrize("event", list(Event))
@pytest.mark.parametrize("opened_by", [Event.REFUSED, Event.FORBIDDEN])
def test_what_refuses_everybody_is_over_with_an_acceptance_and_nothing_else(
    governor: TimedGovernor, opened_by: Event, event: Event
) -> None:
    refuse(governor, 1, 2, 3, event=opened_by)
    governor.advance(FIRST_PROBE)
    assert governor.transactional().probe
    settled = governor.report(event, retry_after=1, refused=Refusal("invalid", ("9",)))
    assert settled.closed is (event is Event.ACCEPTED)


@pytest.mark.parametrize("rail", ["transactional", "marketing"])
def test_an_acceptance_on_either_rail_closes_what_is_open_for_both(governor: TimedGovernor, rail: str) -> None:
    refuse(governor, 1, 2, 3, event=Event.FORBIDDEN)
    assert governor.report(Event.ACCEPTED, rail=rail).closed


def test_a_refused_sender_proves_nothing_of_a_provider_that_could_not_be_reached(broken: TimedGovernor) -> None:
    """A proxy in front of it says 403 as well. What refuses three of them is another trouble, and is called that."""
    for n, name in enumerate(("a", "b", "c")):
        broken.advance(60)
        assert broken.transactional().probe
        settled = broken.report(Event.FORBIDDEN, refused=Refusal("invalid", (name,)))
        assert (settled.circuit, settled.closed) == ("refusing" if n == 2 else "unreachable", False)
    assert settled.opened


def test_a_refused_sender_does_not_end_a_run_of_failures(governor: TimedGovernor) -> None:
    fail(governor, "a", "b")
    governor.transactional()
    governor.report(Event.FORBIDDEN)
    governor.advance(0.1)
    assert fail(governor, "c").opened


def test_who_closes_it_is_told_since_when_everybody_was_refused(governor: TimedGovernor) -> None:
    """From the first of the refusals that opened it on: what was held for them is held no more."""
    refuse(governor, "of-another-code", code="too_large")
    refuse(governor, 1, 2, 3, event=Event.FORBIDDEN)
    governor.advance(600)
    assert governor.report(Event.ACCEPTED).refused_for == about(600.3)
    fail(governor, "a", "b", "c")
    settled = governor.report(Event.ACCEPTED)
    assert (settled.closed, settled.refused_for) == (True, 0)


def test_probes_of_what_refuses_everybody_are_two_seconds_apart_at_most(governor: TimedGovernor) -> None:
    """It is quick to answer, and the codes of somebody who has not been refused yet wait for the next of them."""
    governor.jitter = 1.0
    refuse(governor, 1, 2, 3)
    for _ in range(6):
        governor.advance(60)
        assert governor.transactional().probe
        governor.report(Event.REFUSED)
        assert wait(governor) == about(2 + PROBE_GRACE)


# Probes of providers that cannot be asked, and repetitions


def test_a_probe_of_a_provider_without_confirmation_is_one_send(broken: TimedGovernor) -> None:
    broken.advance(FIRST_PROBE)
    probe = broken.ask("transactional", want(sends=50), probe_batch=1)
    assert (probe.probe, probe.shares) == (True, (1,))
    broken.report(Event.ACCEPTED)
    broken.advance(0.1)
    assert broken.ask("transactional", want(sends=50), probe_batch=1).shares == (50,)


def test_repetitions_take_a_fifth_of_the_rate_and_leave_the_rest_to_new_work(governor: TimedGovernor) -> None:
    governor.limits = Limits(Bucket(1, 10))
    repeated = new = 0
    for _ in range(600):  # a minute, in which both always want the next token
        if governor.ask("transactional", replay=True, retry=True, batch="x").granted:
            repeated += 1
        else:
            new += governor.transactional().granted
        governor.advance(0.1)
    assert repeated + new == 600
    assert repeated == 10 + 2 * 60 - 1, "what is there at first, and two a second"


def test_a_used_up_retry_budget_says_so_and_for_how_long(governor: TimedGovernor) -> None:
    governor.limits = Limits(Bucket(100, 10))
    governor.ask("transactional")
    governor.advance(60)
    while (refused := governor.ask("transactional", replay=True, retry=True)).granted:
        pass
    assert (refused.reason, refused.wait) == ("retries", about(0.5))
    assert governor.ask("transactional").granted
    governor.advance(0.5)
    assert governor.ask("transactional", replay=True, retry=True).granted


def test_marketing_s_repetitions_leave_half_of_the_budget_to_the_other_rail(governor: TimedGovernor) -> None:
    governor.limits = Limits(Bucket(100, 10))
    governor.transactional()
    governor.advance(60)
    while governor.ask("marketing", replay=True, retry=True).granted:
        pass
    assert sum(governor.ask("transactional", replay=True, retry=True).granted for _ in range(9)) == 5


def test_a_repetition_that_was_not_made_gives_its_part_of_the_budget_back(governor: TimedGovernor) -> None:
    decision = governor.ask("transactional", replay=True, retry=True)
    governor.report(Event.NONE, epoch=decision.epoch, unused=True, retry=True)
    assert float(governor.state()["r_tokens"]) == 10


def test_a_probe_takes_nothing_from_the_retry_budget(broken: TimedGovernor) -> None:
    broken.advance(60)
    assert broken.ask("transactional", replay=True, retry=True, batch="x").probe
    assert "r_tokens" not in broken.state()
