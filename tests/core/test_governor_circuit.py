"""The circuit: what opens it, who may probe and when, what closes it."""

import pytest

from core.governor import PERMIT_TTL, PROBE_GRACE, Bucket, Event, Limits, Settled
from tests.core.governor_rig import TimedGovernor, about, want

#: With the middle jitter, the first probe comes 0.75 s after opening.
FIRST_PROBE = 0.75


def fail(governor: TimedGovernor, *batches: str) -> Settled:
    """Requests for these batches fail; 100 ms each, so that there is a token again."""
    for batch in batches:
        assert governor.ask("transactional", batch=batch).granted
        settled = governor.report(Event.FAILED, batch=batch)
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


@pytest.mark.parametrize("event", [Event.ACCEPTED, Event.ANSWERED, Event.RATE_LIMITED])
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
    for rail, replay in (("transactional", False), ("transactional", True), ("marketing", False)):
        assert wait(broken, rail, replay=replay) == about(PERMIT_TTL)


def test_the_permit_of_a_probe_that_vanished_expires(broken: TimedGovernor) -> None:
    broken.advance(FIRST_PROBE)
    assert broken.transactional().probe
    broken.advance(PERMIT_TTL)
    assert broken.ask("transactional", replay=True).probe


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
    assert wait(broken) == about(PERMIT_TTL)


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


@pytest.mark.parametrize("event", [Event.ACCEPTED, Event.ANSWERED, Event.RATE_LIMITED, Event.QUOTA])
def test_any_answer_closes_an_unreachable_circuit(broken: TimedGovernor, event: Event) -> None:
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


def refuse(governor: TimedGovernor, *tenants: int, rail: str = "transactional", code: str = "invalid") -> Settled:
    for tenant in tenants:
        assert governor.ask(rail).granted
        settled = governor.report(Event.REFUSED, rail=rail, refused=(tenant, code))
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


@pytest.mark.parametrize("rail", ["transactional", "marketing"])
def test_an_acceptance_on_either_rail_between_refusals_keeps_it_closed(governor: TimedGovernor, rail: str) -> None:
    refuse(governor, 1, 2)
    governor.ask(rail)
    governor.report(Event.ACCEPTED, rail=rail)
    governor.advance(0.1)
    assert refuse(governor, 3, 4).circuit == ""


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
    assert governor.report(Event.ACCEPTED).closed, "the provider takes something"


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
    settled = governor.report(Event.REFUSED, rail="marketing", refused=(4, "invalid"))
    assert (settled.circuit, settled.closed) == ("refusing", False)


@pytest.mark.parametrize(
    ("event", "closes"), [(Event.ACCEPTED, True), (Event.REFUSED, False), (Event.RATE_LIMITED, False)]
)
def test_what_refuses_everybody_is_over_with_an_acceptance(governor: TimedGovernor, event: Event, closes: bool) -> None:
    refuse(governor, 1, 2, 3)
    governor.advance(FIRST_PROBE)
    assert governor.transactional().probe
    assert governor.report(event, retry_after=1, refused=(9, "invalid")).closed is closes


def test_a_refusal_closes_a_circuit_that_was_open_because_nobody_answered(broken: TimedGovernor) -> None:
    broken.advance(FIRST_PROBE)
    broken.transactional()
    assert broken.report(Event.REFUSED, refused=(1, "invalid")).closed


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
