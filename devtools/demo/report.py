"""`demo-report.html`: what a run showed, as one page. Pure but for what it is told of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from devtools.demo.figures import MAX_BATCH, RAIL_OF, Bounds, Evidence, Figures, LedgerBatch
from devtools.demo.tenants import TENANTS
from devtools.demo.wording import LATENCY_HEAD, LATENCY_TITLE, latency_rows, ms, rest_rows, shown
from devtools.report.charts import MAX_DOTS, Point, Series, scatter, stacked, steps
from devtools.report.frame import Labels, Rule, Size
from devtools.report.page import document, facts, figure, listing, paragraph, section, table, tiles
from devtools.report.scales import time_unit
from devtools.report.svg import Markup, tag

_LOWEST_MS, _HIGHEST_MS = 10.0, 2_000.0


def report(evidence: Evidence, figures: Figures, failed: Sequence[str], ran: Sequence[tuple[str, str]]) -> str:
    """The page. `failed`: conditions that were not met, in words. `ran`: what was run, where, with what."""
    limit = round(evidence.limit)
    moments = _Moments(evidence, figures)
    charts = [_codes(evidence, figures, moments), _requests(evidence, moments)]
    charts += [*_depths(evidence, moments), _fill(evidence, figures, moments)]
    return document(
        "Demo: a blast and login codes at once",
        [
            _head(figures, failed, limit),
            tiles(_tiles(figures)),
            *charts,
            section(
                "The run in figures",
                table(f"{LATENCY_TITLE}, by the ledger's clock", LATENCY_HEAD, latency_rows(figures)),
                facts("The blast, the provider, and what must be 0", rest_rows(figures, limit)),
            ),
            section("What was run", *_what_was_run(figures, limit), facts("Machine, options, versions", list(ran))),
        ],
    )


class _Moments:
    """Moments of the run as places on a time axis that starts when the blast was launched."""

    def __init__(self, evidence: Evidence, figures: Figures) -> None:
        self._start = evidence.launched_at
        ends = [figures.elapsed, *(at - self._start for at in evidence.accepting.values())]
        unit, self._per = time_unit(max(ends))
        self.end = max(ends) / self._per
        self.label = f"{unit} since the blast was launched"

    def __call__(self, at: float) -> float:
        return max(0.0, (at - self._start) / self._per)


# ----------------------------------------------------------------------------------------------------------- words


def _head(figures: Figures, failed: Sequence[str], limit: int) -> Markup:
    parts = [paragraph("make demo", class_="kind")]
    if failed:
        count = "One condition" if len(failed) == 1 else f"{len(failed)} conditions"
        verdict = tag("p", f"{count} not met", class_="verdict bad")
        parts += [tag("h1", "The promise did not hold in this run"), verdict, listing(failed, class_="failures")]
    else:
        verdict = tag("p", "All conditions met", class_="verdict good")
        parts += [tag("h1", "A blast filled the provider, and login codes did not wait"), verdict]
        parts.append(paragraph(shown(figures, limit), class_="lead"))
    return tag("header", *parts)


def _tiles(f: Figures) -> list[tuple[str, str, str]]:
    codes = f.otp.get("all")
    return [
        ("99 of 100 codes within", ms(codes.p99) if codes else "–", f"{Bounds().otp_p99:g} s is allowed"),
        ("The blast got", f"{f.share:.1%}", "of the requests that codes left"),
        ("Batch fill", f"{f.fill:.1f}", f"of {MAX_BATCH} e-mails"),
        ("Answered 429", f"{f.too_many:,}", f"of {f.requests:,} requests"),
        ("Lost, sent twice", f"{f.lost}, {f.doubled}", f"of {f.blast_sent + f.otp_submitted:,} sends"),
    ]


def _what_was_run(figures: Figures, limit: int) -> list[Markup]:
    acme, bistro = TENANTS.values()
    return [
        paragraph(
            f"PostgreSQL, Redis, a web process, one worker for each rail, the clock, and a provider on this machine that"
            f" answers as Resend does: {limit} requests a second, 50 ms each, 429 beyond. {acme} planned a blast to"
            f" {figures.recipients:,} recipients from a CSV file; while it was sent, {acme} and {bistro} each sent two login"
            " codes a second through the HTTP API, at random moments. Afterwards the provider's log was compared with the"
            " ledger, send by send."
        ),
        paragraph("Run it again: ", tag("code", "make demo"), class_="note"),
    ]


# ---------------------------------------------------------------------------------------------------------- charts


def _codes(evidence: Evidence, figures: Figures, moments: _Moments) -> Markup:
    sends = {send.id: send for send in evidence.sends}
    by_tenant: dict[str, list[Point]] = {slug: [] for slug in TENANTS}
    for send_id, tenant in evidence.submitted.items():
        send = sends.get(send_id)
        if send is not None and send.accepted_at is not None:
            point = (moments(send.created_at), (send.accepted_at - send.created_at) * 1000)
            by_tenant.setdefault(tenant, []).append(point)
    series = [
        Series(f"{TENANTS.get(slug, slug)}{', who also blasts' if n == 0 else ''}", style, by_tenant[slug])
        for n, (slug, style) in enumerate(zip(by_tenant, ("one", "three"), strict=False))
    ]
    bar = Rule(Bounds().otp_p99 * 1000, f"{Bounds().otp_p99:g} s: the bar", "limit")
    found = figures.otp.get("all")
    measured = [Rule(v * 1000, f"{name} {ms(v)}") for name, v in zip(LATENCY_HEAD[2:], _times(figures), strict=False)]
    rules = [bar, *measured[:3]]
    slowest = max([_HIGHEST_MS, *(y for one in series for _, y in one.points)])
    fastest = min([50.0, *(y for one in series for _, y in one.points)])
    words = (
        f"Each mark is a login code: how long from the request that submits it to the provider's acceptance. Half took at"
        f" most {ms(found.p50)}, 95 of 100 at most {ms(found.p95)}, 99 of 100 at most {ms(found.p99)}."
        if found
        else "No login code was accepted."
    )
    labels = Labels("codes", "Login codes: time to acceptance", words, moments.label, "milliseconds, logarithmic")

    def draw(size: Size) -> Markup:
        ends = (max(_LOWEST_MS / 10, fastest / 1.6), slowest)
        return scatter(labels, series, size, rules=rules, x_end=moments.end, y_ends=ends, log=True)

    thinned = any(len(one.points) > MAX_DOTS for one in series)
    note = "Not all are drawn: of codes that are close together, the slowest is, and one more." if thinned else ""
    return figure(labels.title, words, draw, series, note)


def _times(figures: Figures) -> Sequence[float]:
    found = figures.otp.get("all")
    return (found.p50, found.p95, found.p99) if found else ()


def _requests(evidence: Evidence, moments: _Moments) -> Markup:
    rails = {send.id: RAIL_OF[send.category] for send in evidence.sends}
    rail_of = {request: rails.get(send_id or "", "") for send_id, request in evidence.at_provider}
    counts: dict[str, Counter[int]] = {"marketing": Counter(), "transactional": Counter(), "429": Counter()}
    for request, at in evidence.accepting.items():
        counts[rail_of.get(request) or "marketing"][int(at - evidence.launched_at)] += 1
    for second, count in evidence.too_many_per_second:
        counts["429"][max(0, int(second - evidence.launched_at))] += count
    names = {"marketing": ("the blast", "two"), "transactional": ("login codes", "one"), "429": ("answered 429", "bad")}
    series = [Series(*names[kind], sorted(found.items())) for kind, found in counts.items()]
    limit = Rule(evidence.limit, f"{evidence.limit:g}/s: the limit", "limit")
    words = (
        "What the provider got in each second. A login code takes the next free request, the blast takes all that is left;"
        " together they keep close below the limit."
    )
    labels = Labels(
        "requests", "Requests a second, against the limit", words, "seconds since the blast was launched", "requests"
    )
    return figure(
        labels.title,
        words,
        lambda size: stacked(labels, series, size, rules=[limit]),
        series,
        "The provider's one-second windows begin with its first request, not with these seconds: a bar may be one request"
        " over or under without a window being so. In a long run a bar is the mean of several seconds.",
    )


def _depths(evidence: Evidence, moments: _Moments) -> list[Markup]:
    marketing = [(moments(depth.at), float(depth.marketing)) for depth in evidence.depths]
    codes = [(moments(depth.at), float(depth.transactional)) for depth in evidence.depths]
    most = max((depth.transactional for depth in evidence.depths), default=0)
    looks = f"{len(evidence.depths):,} looks."
    backlog = Labels(
        "marketing",
        "Marketing rail: e-mails that are due and wait",
        f"The blast's backlog, worked off as fast as the limit allows. {looks}",
        moments.label,
        "e-mails",
    )
    waiting = Labels(
        "transactional",
        "Transactional rail: login codes that are due and wait",
        f"Codes that a look found waiting for the next free request: never more than {most}. The scale is another one than"
        f" above. {looks}",
        moments.label,
        "login codes",
    )
    return [
        figure(
            labels.title,
            labels.description,
            lambda size, labels=labels, one=one: steps(labels, [one], size, x_end=moments.end),  # type: ignore[misc]
        )
        for labels, one in (
            (backlog, Series("the blast", "two", marketing)),
            (waiting, Series("login codes", "one", codes)),
        )
    ]


def _fill(evidence: Evidence, figures: Figures, moments: _Moments) -> Markup:
    def points(rail: str) -> list[Point]:
        return [(moments(b.created_at), float(len(b.send_ids))) for b in evidence.batches if _took(b, rail)]

    series = [Series("the blast", "two", points("marketing")), Series("login codes", "three", points("transactional"))]
    words = (
        f"Each mark is a request. The blast's hold {figures.fill:.1f} e-mails in the mean, of 100 that the provider takes at"
        " once; a login code does not wait for company, and those that are due together share a request."
    )
    labels = Labels("fill", "E-mails in a request", words, moments.label, "e-mails")
    top = (0.0, 1.1 * MAX_BATCH)
    return figure(
        labels.title,
        words,
        lambda size: scatter(
            labels, series, size, rules=[Rule(MAX_BATCH, f"{MAX_BATCH}: full", "limit")], x_end=moments.end, y_ends=top
        ),
        series,
    )


def _took(batch: LedgerBatch, rail: str) -> bool:
    return batch.rail == rail and batch.state.startswith("accepted")
