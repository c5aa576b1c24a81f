"""What the profiles conclude from what they found, and how they judge it."""

from __future__ import annotations

import dataclasses
import math

import pytest

from devtools.bench.goals import Figure
from devtools.bench.table import verdict
from devtools.demo.figures import Evidence, LedgerSend, compute
from devtools.k6 import judge
from devtools.k6.conditions import CONDITIONS, COUNTS, PROFILES, judged, missed, told
from devtools.k6.judge import Burst, NotMeasuredError
from devtools.k6.options import parse
from devtools.k6.run import RUNNERS


def code(pk: str, tenant: str, created: float, accepted: float | None) -> LedgerSend:
    return LedgerSend(pk, tenant, "transactional", "transactional", "sent", False, created, accepted)


SENDS = [
    code("a1", "acme", 10.0, 10.1),
    code("a2", "acme", 12.0, 15.0),  # in the burst's shadow
    code("a3", "acme", 20.0, 20.2),
    code("b1", "bistro", 10.0, 10.4),
    code("x1", "bistro", 11.0, 12.5),
    code("x2", "bistro", 11.1, 13.0),
    code("late", "bistro", 30.0, None),
]


def evidence(sends: list[LedgerSend], at_provider: list[tuple[str | None, int]], **fields: object) -> Evidence:
    empty = Evidence(10, 0, 0, 0.0, {s.id: s.tenant for s in sends}, {}, [], sends, [], at_provider, 0, 0, 0)
    return dataclasses.replace(empty, **fields)  # type: ignore[arg-type]


def test_a_burst_lasts_from_its_first_submit_to_its_last_acceptance() -> None:
    found = judge.burst_of({"x1", "x2"}, SENDS)
    assert (found.begin, found.end, found.slowest) == (11.0, 13.0, pytest.approx(1.9))


def test_a_burst_with_a_code_that_was_never_accepted_is_endless() -> None:
    assert judge.burst_of({"x1", "late"}, SENDS).slowest == math.inf


@pytest.mark.parametrize("ids", [set(), {"x1", "gone"}])
def test_a_burst_that_is_not_in_the_ledger_is_no_measurement(ids: set[str]) -> None:
    with pytest.raises(NotMeasuredError):
        judge.burst_of(ids, SENDS)


def test_codes_are_measured_outside_the_bursts_and_tenant_by_tenant() -> None:
    found = judge.codes(evidence(SENDS, []), {"a1", "a2", "a3", "b1"}, [Burst(11.0, 13.0, 2.0)], ("acme", "bistro"))
    assert found["codes of A, p99"] == pytest.approx(200)
    assert found["codes of A, p50"] == pytest.approx(100)
    assert found["codes of B, p99"] == pytest.approx(400)
    with_burst = judge.codes(evidence(SENDS, []), {"a1", "a2", "a3", "b1"}, [], ("acme", "bistro"))
    assert with_burst["codes of A, p99"] == pytest.approx(3_000)


def test_a_tenant_without_codes_is_no_measurement() -> None:
    with pytest.raises(NotMeasuredError, match="no code of B"):
        judge.codes(evidence(SENDS, []), {"a1"}, [], ("acme", "bistro"))


MARKETING_AMONG_CODES = LedgerSend("m", "acme", "marketing", "transactional", "sent", True, 1.0, 2.0)


@pytest.mark.parametrize(
    ("count", "found", "more"),
    [
        ("lost", evidence(SENDS[:2], [("a1", 1)]), {}),
        ("lost", evidence(SENDS[:1], [("a1", 1)]), {"rows_missing": 1}),
        ("doubled", evidence(SENDS[:1], [("a1", 1), ("a1", 2)]), {}),
        (
            "accepted, not recorded",
            evidence([dataclasses.replace(SENDS[0], status="sending")], [("a1", 1)]),
            {},
        ),
        ("unknown at the provider", evidence(SENDS[:1], [("a1", 1), (None, 1)]), {}),
        ("failed", evidence([dataclasses.replace(SENDS[0], status="failed")], [("a1", 1)]), {}),
        ("refused", evidence(SENDS[:1], [("a1", 1)], refused={"HTTP 503": 1}), {}),
        ("on the wrong rail", evidence([MARKETING_AMONG_CODES], [("m", 1)]), {}),
        ("requests past the governor", evidence(SENDS[:1], [("a1", 1)], requests=5, tokens=4), {}),
        ("still open", evidence(SENDS[:1], [("a1", 1)]), {"still_open": 1}),
        ("k6 thresholds crossed", evidence(SENDS[:1], [("a1", 1)]), {"failed_scripts": 1}),
    ],
)
def test_each_thing_that_must_not_be_is_counted(count: str, found: Evidence, more: dict[str, int]) -> None:
    counts = judge.counts(compute(found), **{"rows_missing": 0, "still_open": 0, "failed_scripts": 0} | more)
    assert counts[count] == 1
    assert counts.keys() == {condition.figure for condition in COUNTS}


STEADY = [i / 10 for i in range(100)]


@pytest.mark.parametrize(
    ("accepted", "end", "seconds"),
    [
        ([t for t in STEADY if t < 3 or t >= 5], 5.0, 0.0),
        ([t for t in STEADY if t < 3 or t >= 6.5], 5.0, 1.5),
        ([t for t in STEADY if t < 3] + [5.0 + i for i in range(5)], 5.0, 5.0),  # one a second is no full rate
        ([t for t in STEADY if t < 3] + [5.0 + i / 4 for i in range(20)], 5.0, 5.0),  # enough of them, too far apart
        ([], 5.0, 5.0),
    ],
)
def test_recovery_is_the_begin_of_the_first_full_window(accepted: list[float], end: float, seconds: float) -> None:
    assert judge.recovered_after(accepted, end, 10.0, 10) == pytest.approx(seconds)


def perfect(profile: str) -> dict[str, float]:
    return {
        c.figure: c.goal.value if c.goal and c.goal.value else 0.0 if c.goal else 1.0
        for c in (*CONDITIONS[profile], *COUNTS)
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_a_run_that_reaches_its_goals_exactly_passes(profile: str) -> None:
    assert missed(list(judged(profile, perfect(profile), "x", short=False))) == []


@pytest.mark.parametrize(
    ("profile", "figure"),
    [(profile, c.figure) for profile in PROFILES for c in (*CONDITIONS[profile], *COUNTS) if c.goal],
)
def test_each_condition_alone_fails_a_full_run(profile: str, figure: str) -> None:
    condition = next(c for c in (*CONDITIONS[profile], *COUNTS) if c.figure == figure)
    assert condition.goal
    worse = condition.goal.value * 1.01 + 1e-6 if condition.goal.most else condition.goal.value * 0.99
    values = perfect(profile) | {figure: worse}
    (found,) = missed(list(judged(profile, values, "x", short=False)))
    assert found.name == figure
    assert verdict(found).startswith("missed")
    assert found in told([found])
    in_short = missed(list(judged(profile, values, "x", short=True)))
    assert bool(in_short) is condition.always


def test_a_condition_without_a_value_is_no_pass() -> None:
    values = perfect("newcomer")
    del values["429s"]
    with pytest.raises(ValueError, match="429s"):
        list(judged("newcomer", values, "x", short=False))
    with pytest.raises(ValueError, match="speed"):
        list(judged("newcomer", perfect("newcomer") | {"speed": 1.0}, "x", short=False))


def test_zeros_that_are_met_are_not_told() -> None:
    figures = list(judged("newcomer", perfect("newcomer"), "x", short=False))
    assert [figure.name for figure in told(figures)] == ["longest wait for the first batch"]
    lost = next(f for f in figures if f.name == "lost")
    assert told([dataclasses.replace(lost, value=3.0)])
    assert verdict(dataclasses.replace(lost, value=3.0)) == "missed"
    assert told([Figure("p", "told only", 0.0, "", "x")])


def test_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([]).only == PROFILES == tuple(RUNNERS)
    assert parse(["--only", "newcomer, blast-vs-otp"]).only == ("blast-vs-otp", "newcomer")
    assert parse(["--short"]).short
    with pytest.raises(SystemExit):
        parse(["--only", "speed"])
    assert "no profile 'speed'" in capsys.readouterr().err
