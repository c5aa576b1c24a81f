"""What counts as lost, doubled, failed; and when a flow has recovered. By hand-made evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devtools.chaos.driver import Happened
from devtools.chaos.judge import Accepted, Evidence, LedgerSend, counts, recovery
from devtools.chaos.schedule import KINDS

A, B = "a@inbox.example", "b@inbox.example"
CLEAN = Evidence(
    recipients=frozenset({A, B}),
    promised=frozenset({"1"}),
    unanswered=0,
    refused={},
    answered_differently=0,
    sends=[
        LedgerSend("1", "transactional", "sent", None, "x", "accepted"),
        LedgerSend("2", "marketing", "sent", None, "y", "accepted"),
    ],
    accepted=[Accepted("1", A, 10.0), Accepted("2", B, 11.0)],
    dead_letters=0,
    open_batches=0,
    open_jobs=0,
    open_blasts=0,
)


def wrong(evidence: Evidence, *, allowed: bool = False) -> dict[str, int]:
    return {name: count for name, count in counts(evidence, ambiguous_allowed=allowed).items() if count}


def second(status: str, batch_state: str = "accepted") -> list[LedgerSend]:
    return [CLEAN.sends[0], LedgerSend("2", "marketing", status, None, "y", batch_state)]


def test_a_clean_run_is_clean() -> None:
    assert wrong(CLEAN) == wrong(CLEAN, allowed=True) == {}


@pytest.mark.parametrize(
    ("evidence", "names"),
    [
        (
            replace(CLEAN, accepted=CLEAN.accepted[:1]),
            {"lost: asked for, never accepted", "sent, says the ledger, and never accepted"},
        ),
        (replace(CLEAN, accepted=[*CLEAN.accepted, Accepted("2", B, 12.0)]), {"doubled sends", "doubled addresses"}),
        (
            replace(
                CLEAN,
                sends=[*CLEAN.sends, replace(CLEAN.sends[0], id="3")],
                accepted=[*CLEAN.accepted, Accepted("3", A, 12.0)],
            ),
            {"doubled addresses", "sends too many in the ledger"},
        ),
        (
            replace(CLEAN, sends=CLEAN.sends[:1]),
            {"sends too few in the ledger", "accepted, and unknown to the ledger"},
        ),
        (replace(CLEAN, sends=second("queued")), {"still open", "accepted, and not sent, says the ledger"}),
        (
            replace(CLEAN, sends=second("failed"), dead_letters=1),
            {"ended otherwise", "dead letters", "accepted, and not sent, says the ledger"},
        ),
        (replace(CLEAN, promised=frozenset({"1", "9"})), {"promised sends that are not in the ledger"}),
        (
            replace(CLEAN, accepted=[*CLEAN.accepted, Accepted(None, "c@inbox.example", 1.0)]),
            {"accepted, and unknown to the ledger", "accepted for somebody nobody asked to write to"},
        ),
        (replace(CLEAN, unanswered=1), {"submits without an answer"}),
        (replace(CLEAN, refused={"code: 400 x": 2}), {"submits refused"}),
        (replace(CLEAN, answered_differently=1), {"submits answered in two ways"}),
        (replace(CLEAN, open_batches=1), {"batches still open"}),
        (replace(CLEAN, open_jobs=1), {"jobs still open"}),
        (replace(CLEAN, open_blasts=1), {"blasts not finished"}),
        (replace(CLEAN, audit="1 difference"), {"complaints of manage.py audit"}),
        (
            replace(CLEAN, sends=second("ambiguous", "ambiguous")),
            {"ambiguous", "accepted, and not sent, says the ledger"},
        ),
    ],
)
def test_what_is_wrong_has_a_name(evidence: Evidence, names: set[str]) -> None:
    assert wrong(evidence).keys() == names


def test_where_nobody_can_be_asked_ambiguous_is_allowed_and_nothing_else() -> None:
    taken = replace(CLEAN, sends=second("ambiguous", "ambiguous"))
    untaken = replace(taken, accepted=CLEAN.accepted[:1])
    assert wrong(taken, allowed=True) == wrong(untaken, allowed=True) == {}
    assert wrong(replace(taken, sends=second("ambiguous", "unknown")), allowed=True).keys() == {
        "ambiguous without an ambiguous batch"
    }
    doubled = replace(taken, accepted=[*CLEAN.accepted, Accepted("2", B, 12.0)])
    assert wrong(doubled, allowed=True).keys() == {"doubled sends", "doubled addresses"}
    # One that is ambiguous does not make up for one that is lost.
    lost = replace(taken, accepted=CLEAN.accepted[1:])
    assert wrong(lost, allowed=True).keys() == {
        "lost: asked for, never accepted",
        "sent, says the ledger, and never accepted",
    }


ASKED = {"marketing": 10.0, "transactional": 10.0}


def at(per_second: float, begin: float, end: float) -> list[float]:
    return [begin + number / per_second for number in range(round((end - begin) * per_second))]


def fault(name: str, begin: float, end: float) -> Happened:
    return Happened(KINDS[name], begin, end)


def test_a_flow_has_recovered_when_half_of_the_rate_before_is_reached() -> None:
    one = fault("outage", 20, 30)
    flow = {"marketing": at(10, 0, 20) + at(3, 31, 40) + at(8, 40, 60), "transactional": at(10, 0, 60)}
    found = recovery(one, [one], flow, ASKED, 0)
    assert found.seconds["transactional"] == pytest.approx(0)
    assert found.seconds["marketing"] == pytest.approx(8.6, abs=0.6)  # a window of 3 s with 15 of them begins there
    assert found.together == ()


def test_one_that_never_recovers() -> None:
    one = fault("outage", 20, 30)
    assert recovery(one, [one], {"marketing": at(10, 0, 20) + at(1, 30, 60)}, ASKED, 0).seconds == {"marketing": None}
    assert recovery(one, [one], {"marketing": []}, ASKED, 0).seconds == {"marketing": None}


def test_faults_that_overlap_are_counted_from_the_end_of_the_last() -> None:
    first, other = fault("outage", 20, 30), fault("redis-emptied", 25, 35)
    flow = {"marketing": at(10, 0, 20) + at(10, 36, 60)}
    found = recovery(first, [first, other], flow, ASKED, 0)
    assert found.seconds["marketing"] == pytest.approx(1)
    assert found.together == ("redis-emptied",)


def test_a_fault_that_stops_nothing_covers_nothing() -> None:
    first, beside = fault("outage", 20, 30), fault("snapshot", 25, 80)
    flow = {"marketing": at(10, 0, 20) + at(10, 32, 60)}
    assert recovery(first, [first, beside], flow, ASKED, 0).seconds["marketing"] == pytest.approx(2)


def test_the_rate_before_is_that_of_undisturbed_seconds() -> None:
    before, one = fault("redis-emptied", 10, 18), fault("outage", 20, 30)
    # 8 s of 10/s before the first, nothing in it, 10/s between: the rate is 10/s, and 4/s is not half of it.
    flow = {"marketing": at(10, 0, 10) + at(10, 18, 20) + at(4, 30, 40) + at(6, 40, 60)}
    assert recovery(one, [before, one], flow, ASKED, 0).seconds["marketing"] == pytest.approx(8.5, abs=1.5)


def test_a_backlog_before_the_fault_is_no_measure() -> None:
    one = fault("outage", 20, 30)
    flow = {"marketing": at(100, 0, 20) + at(6, 31, 60)}
    assert recovery(one, [one], flow, ASKED, 0).seconds["marketing"] == pytest.approx(1)
    assert recovery(one, [one], flow, {"marketing": 100.0}, 0).seconds["marketing"] is None
