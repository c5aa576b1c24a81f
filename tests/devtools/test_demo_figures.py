"""What follows from what was found: tables, no process."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from devtools.demo.display import Display, Progress, line, panel
from devtools.demo.figures import (
    Bounds,
    Evidence,
    LedgerBatch,
    LedgerSend,
    compute,
    failures,
    latency,
    percentile,
)
from devtools.demo.load import Posted, moments, refusals
from devtools.demo.options import RECIPIENTS, SHORT_RECIPIENTS, options_from, parse

# --------------------------------------------------------------------------------------------------- percentiles


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [(1, 50, 1), (1, 99, 1), (2, 50, 1), (4, 50, 2), (100, 50, 50), (100, 95, 95), (100, 99, 99), (101, 99, 100)],
)
def test_percentiles_are_nearest_rank(count: int, percent: float, expected: float) -> None:
    assert percentile([float(n) for n in range(1, count + 1)], percent) == expected


def test_latency_sorts() -> None:
    found = latency([0.3, 0.1, 0.2])
    assert found is not None
    assert (found.count, found.p50, found.p99, found.max) == (3, 0.2, 0.3, 0.3)
    assert latency([]) is None


# ------------------------------------------------------------------------------------------------- a run to judge

LAUNCH = 1000.0


def good() -> Evidence:
    """A provider of 10 requests/s for 1 s: 6 batches of 100 of a blast, 4 codes of two tenants, nothing wrong."""
    blast = [_send(f"b{i}", "acme", "marketing", LAUNCH - 1, LAUNCH + 1, of_blast=True) for i in range(600)]
    codes = [
        _send("o0", "acme", "transactional", LAUNCH + 0.1, LAUNCH + 0.2),
        _send("o1", "bistro", "transactional", LAUNCH + 0.2, LAUNCH + 0.4),
        _send("o2", "acme", "transactional", LAUNCH + 0.3, LAUNCH + 0.6),
        _send("o3", "bistro", "transactional", LAUNCH + 0.4, LAUNCH + 0.8),
    ]
    batches = [_batch("marketing", blast[n : n + 100], LAUNCH + n / 1000) for n in range(0, 600, 100)]
    batches += [_batch("transactional", [code], code.created_at) for code in codes]
    return Evidence(
        limit=10,
        recipients=600,
        rejected=0,
        launched_at=LAUNCH,
        submitted={code.id: code.tenant for code in codes},
        refused={},
        post_seconds=[0.01] * 4,
        sends=[*blast, *codes],
        batches=batches,
        at_provider=[(send_id, number) for number, batch in enumerate(batches) for send_id in batch.send_ids],
        requests=10,
        too_many=0,
        tokens=10,
    )


def _send(
    send_id: str, tenant: str, category: str, created: float, accepted: float | None, *, of_blast: bool = False
) -> LedgerSend:
    rail = "marketing" if category == "marketing" else "transactional"
    return LedgerSend(send_id, tenant, category, rail, "sent", of_blast, created, accepted)


def _batch(rail: str, sends: list[LedgerSend], at: float) -> LedgerBatch:
    return LedgerBatch(rail, "accepted", tuple(send.id for send in sends), at, 1)


def judged(evidence: Evidence, bounds: Bounds | None = None) -> list[str]:
    return failures(compute(evidence), bounds or Bounds())


def changed(evidence: Evidence, send_id: str, **fields: Any) -> Evidence:
    return replace(evidence, sends=[replace(s, **fields) if s.id == send_id else s for s in evidence.sends])


def test_a_good_run() -> None:
    figures = compute(good())
    assert failures(figures, Bounds()) == []
    assert figures.elapsed == pytest.approx(1.0)
    assert figures.otp_requests == 4
    assert figures.left_over == pytest.approx(10 * 1.0 - 4)
    assert figures.blast_requests == 6
    assert figures.share == pytest.approx(1.0)
    assert figures.emails_per_second == pytest.approx(600)
    assert figures.left_over_emails_per_second == pytest.approx(600)
    assert figures.fill == 100
    assert (figures.lost, figures.doubled, figures.wrong_rail, figures.refused, figures.failed) == (0, 0, 0, 0, 0)
    assert {name: found.count for name, found in figures.otp.items()} == {"acme": 2, "bistro": 2, "all": 4}
    assert figures.otp["all"].max == pytest.approx(0.4)


def test_requests_for_codes_count_while_the_blast_runs_and_with_their_repetitions() -> None:
    evidence = good()
    outside = _batch("transactional", [evidence.sends[-1]], LAUNCH + 5)
    repeated = [replace(b, attempts=2) if b.send_ids == ("o0",) else b for b in evidence.batches]
    figures = compute(replace(evidence, batches=[*repeated, outside]))
    assert figures.otp_requests == 5
    assert figures.left_over == pytest.approx(5)


def test_a_batch_that_was_sent_away_is_not_what_the_blast_got() -> None:
    evidence = good()
    refused = LedgerBatch("marketing", "rate_limited", ("b0", "b1"), LAUNCH, 1)
    figures = compute(replace(evidence, batches=[*evidence.batches, refused], requests=11, tokens=11, too_many=1))
    assert figures.blast_requests == 6
    assert figures.fill == 100
    assert figures.too_many == 1


# ----------------------------------------------------------------------------------------------- what can be wrong


def test_a_send_that_the_provider_never_got_is_lost() -> None:
    evidence = good()
    without = [entry for entry in evidence.at_provider if entry[0] not in ("b7", "o1")]
    assert judged(replace(evidence, at_provider=without)) == [
        "2 sends were lost: submitted, and never at the provider."
    ]


def test_a_code_with_a_202_that_the_ledger_does_not_know_is_lost() -> None:
    evidence = good()
    (said, *_) = judged(replace(evidence, submitted={**evidence.submitted, "o9": "acme"}))
    assert said == "1 send was lost: submitted, and never at the provider."


def test_an_accepted_send_that_the_ledger_does_not_call_sent_is_told() -> None:
    (said,) = judged(changed(good(), "b3", status="sending", accepted_at=None))
    assert said == "1 send is with the provider, and the ledger does not say so."


def test_a_send_that_the_provider_has_twice_is_doubled() -> None:
    evidence = good()
    again = [*evidence.at_provider, ("o2", 99), ("o2", 100)]
    assert judged(replace(evidence, at_provider=again)) == ["2 e-mails were sent twice."]


def test_an_e_mail_of_nobody_is_told() -> None:
    evidence = good()
    strangers = [*evidence.at_provider, (None, 98), ("elsewhere", 99)]
    assert judged(replace(evidence, at_provider=strangers)) == ["The provider got 2 e-mails that nobody submitted."]


def test_refusals_are_named() -> None:
    evidence = replace(good(), refused={"HTTP 503": 2, "ConnectionError": 1}, rejected=1)
    assert judged(evidence) == ["4 sends were refused without cause (ConnectionError × 1, HTTP 503 × 2)."]


@pytest.mark.parametrize("status", ["failed", "expired", "cancelled", "ambiguous"])
def test_a_send_that_ended_otherwise_has_failed(status: str) -> None:
    evidence = changed(good(), "b3", status=status, accepted_at=None)
    assert any(said.startswith("1 send failed") for said in judged(evidence))


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(changed(good(), "b3", rail="transactional"), id="by its own row"),
        pytest.param(
            replace(good(), batches=[replace(good().batches[-1], send_ids=("o3", "b3")), *good().batches[:-1]]),
            id="by its batch",
        ),
        pytest.param(
            replace(good(), at_provider=[(i, 6 if i == "b3" else n) for i, n in good().at_provider]),
            id="by the company in a request",
        ),
    ],
)
def test_a_marketing_send_among_codes_is_on_the_wrong_rail(evidence: Evidence) -> None:
    assert "1 send went out on the wrong rail." in judged(evidence)


def test_a_request_without_a_token_is_told() -> None:
    assert judged(replace(good(), tokens=9)) == [
        "The provider got 10 requests for 9 tokens: something passed by the governor."
    ]
    assert judged(replace(good(), tokens=11)) == [], "a token without a request is no breach"


def test_slow_codes_are_told() -> None:
    assert judged(good(), Bounds(otp_p99=0.4 + 1e-9)) == []
    (said,) = judged(good(), Bounds(otp_p99=0.3))
    assert said == "Login codes were slow: p99 0.40 s, more than 0.3 s."


def test_a_starved_blast_is_told() -> None:
    slow = good()
    slow = changed(slow, "b599", accepted_at=LAUNCH + 2)
    (said,) = judged(slow)
    assert said == "The blast got 37.5% of what the login codes left over, less than 80%."


def test_a_run_without_codes_has_shown_nothing() -> None:
    assert "No login code was accepted, so there is nothing to measure." in judged(replace(good(), submitted={}))


def test_a_blast_that_never_left_divides_by_nothing() -> None:
    evidence = replace(good(), sends=[], batches=[], at_provider=[], requests=0, timed_out=True)
    said = judged(evidence)
    assert "The run took too long and was cut off: sends were still waiting." in said
    assert "The blast got 0.0% of what the login codes left over, less than 80%." in said


# ------------------------------------------------------------------------------------------------------- the load


def test_codes_come_once_a_slot_at_random_moments() -> None:
    first = list(itertools.islice(moments(2.0, 2, seed=7), 400))
    assert first == sorted(first)
    for tenant in (0, 1):
        at = [moment for moment, whose in first if whose == tenant]
        assert [int(moment * 2) for moment in at] == list(range(len(at))), "2 a second, never two in a slot"
    assert first == list(itertools.islice(moments(2.0, 2, seed=7), 400))


def test_refusals_count_what_was_not_a_202() -> None:
    posted = [
        Posted("acme", 0.1, "202", "id"),
        Posted("acme", 0.1, "429", None),
        Posted("bistro", 0.1, "429", None),
        Posted("bistro", 0.1, "ReadTimeout", None),
    ]
    assert refusals(posted) == {"HTTP 429": 2, "ReadTimeout": 1}


# ---------------------------------------------------------------------------------------------- what is shown, asked


def shown(width: int, evidence: Evidence) -> str:
    console = Console(file=io.StringIO(), width=width)
    figures = compute(evidence)
    Display(console).report(figures, failures(figures, Bounds()), 10)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [46, 80, 200])
def test_the_report_fits(width: int) -> None:
    table = [row for row in shown(width, good()).splitlines() if row[:1] in "┏┃┡│└┌├"]
    assert table
    assert max(map(len, table)) <= width
    assert any("Bistro" in row and "200" in row and "400" in row for row in table)
    assert not any("…" in row for row in table), "nothing is cut"


def test_a_good_run_is_explained_and_a_bad_one_is_not() -> None:
    assert "Shown: while Acme's 600 e-mails" in shown(80, good())
    bad = shown(80, replace(good(), tokens=9))
    assert "FAILED: The provider got 10 requests for 9 tokens" in bad
    assert "Shown:" not in bad


def test_progress_is_one_line_or_a_panel() -> None:
    progress = Progress(12.3, 4_200, 30_000, 570, 48, 47, 0.171, 9.8, 10, 0)
    assert line(progress) == ("   12 s  blast 4,200/30,000 (570/s)  codes 47/48 p95 171 ms  9.8/10 req/s  429s 0")
    assert "p95 –" in line(replace(progress, otp_p95=None))
    console = Console(file=io.StringIO(), width=46)
    console.print(panel(progress))
    assert isinstance(console.file, io.StringIO)
    assert "4,200 of 30,000" in console.file.getvalue()


@pytest.mark.parametrize(
    ("given", "recipients"),
    [((False, None), RECIPIENTS), ((True, None), SHORT_RECIPIENTS), ((True, 700), 700)],
)
def test_short_is_a_number_of_recipients(given: tuple[bool, int | None], recipients: int) -> None:
    values = {"short": given[0], "recipients": given[1], "rate": 10, "json": None}
    assert options_from(values).recipients == recipients


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--rate", "3"], "must be between 6 and 1,000"),
        (["--recipients", "many"], "not a whole number"),
        (["--report", "/nowhere/at/all.html"], "cannot be written"),
        (["--json", "/"], "cannot be written"),
    ],
)
def test_wrong_flags_are_explained(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(argv)
    assert says in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    assert "examples" in text
    assert "exit code" in text
    assert max(map(len, text.splitlines())) <= 90
