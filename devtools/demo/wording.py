"""The figures of a run as words: the same rows and sentences on the terminal and in the report."""

from __future__ import annotations

from collections.abc import Mapping

from devtools.demo.figures import MAX_BATCH, Figures, Latency
from devtools.demo.tenants import TENANTS

LATENCY_TITLE = "Login codes, submit → accepted, in ms"
LATENCY_HEAD = ("tenant", "codes", "p50", "p95", "p99", "max")


def latency_rows(figures: Figures) -> list[tuple[str, ...]]:
    tenants: Mapping[str, str] = {**TENANTS, "all": "both"}
    return [(name, *_cells(found)) for slug, name in tenants.items() if (found := figures.otp.get(slug))]


def rest_rows(f: Figures, limit: int) -> list[tuple[str, str]]:
    rows = [
        ("blast", f"{f.blast_sent:,} of {f.recipients:,} e-mails in {f.elapsed:.1f} s"),
        (
            "left over",
            f"{limit} requests/s × {f.elapsed:.1f} s − {f.otp_requests} for codes = {f.left_over:.0f} requests",
        ),
        ("the blast took", f"{f.blast_requests} of them, {f.share:.1%}"),
        ("in e-mails", f"{f.emails_per_second:,.0f}/s of {f.left_over_emails_per_second:,.0f}/s that were left over"),
        ("batch fill", f"{f.fill:.1f} of {MAX_BATCH}"),
        ("429s", f"{f.too_many} of {f.requests} requests"),
        ("tokens spent", f"{f.tokens} for {f.requests} requests at the provider"),
        ("lost, doubled", f"{f.lost}, {f.doubled}"),
        ("refused, failed", f"{f.refused}, {f.failed}"),
        ("on the wrong rail", str(f.wrong_rail)),
    ]
    if f.post:
        rows.append(("POST answered in", f"p50 {ms(f.post.p50)}, p99 {ms(f.post.p99)}"))
    return rows


def shown(figures: Figures, limit: int) -> str:
    """What a run that passed has shown."""
    everybody = figures.otp["all"]
    return (
        f"While Acme's {figures.recipients:,} e-mails filled a provider that takes {limit} requests a second,"
        f" {everybody.count} login codes of Acme and Bistro were accepted within {ms(everybody.p99)} (99 of 100), and"
        f" the blast got {figures.share:.0%} of the requests that they left. Nothing was lost, nothing was sent twice."
    )


def ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:,.0f} ms"


def _cells(found: Latency) -> list[str]:
    times = (found.p50, found.p95, found.p99, found.max)
    return [f"{found.count:,}", *(f"{seconds * 1000:,.0f}" for seconds in times)]
