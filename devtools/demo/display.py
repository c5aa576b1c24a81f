"""What the person at the terminal sees: steps, a live view (or plain lines where there is no terminal), a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from devtools.demo.figures import Figures
from devtools.demo.wording import LATENCY_HEAD, LATENCY_TITLE, latency_rows, ms, rest_rows, shown

#: Seconds between two lines where nothing can be redrawn.
_LINE_SECONDS = 5.0
_BAR_WIDTH = 24
_HINTS = (
    'Next: a larger list, ARGS="--recipients 100000"; another provider limit, ARGS="--rate 50"; all of it left running to'
    " look around in, KEEP=1; all processes on this machine for your own requests, make dev."
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How it stands. Rates are of the last few seconds."""

    elapsed: float
    blast_sent: int
    blast_total: int
    emails_per_second: float
    otp_sent: int
    otp_accepted: int
    otp_p95: float | None
    requests_per_second: float
    limit: int
    too_many: int


def line(p: Progress) -> str:
    return (
        f"{p.elapsed:5.0f} s  blast {p.blast_sent:,}/{p.blast_total:,} ({p.emails_per_second:,.0f}/s)"
        f"  codes {p.otp_accepted}/{p.otp_sent} p95 {ms(p.otp_p95)}"
        f"  {p.requests_per_second:.1f}/{p.limit} req/s  429s {p.too_many}"
    )


def panel(p: Progress) -> Panel:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    grid.add_row("elapsed", f"{p.elapsed:.0f} s")
    grid.add_row("blast", f"{p.blast_sent:,} of {p.blast_total:,}, {p.emails_per_second:,.0f} e-mails/s")
    grid.add_row("", ProgressBar(total=max(1, p.blast_total), completed=p.blast_sent, width=_BAR_WIDTH))
    grid.add_row("login codes", f"{p.otp_sent} sent, {p.otp_accepted} accepted")
    grid.add_row("their p95", ms(p.otp_p95))
    grid.add_row("provider", f"{p.requests_per_second:.1f} requests/s of {p.limit}")
    grid.add_row("429s", str(p.too_many))
    return Panel(grid, title="blast and login codes", title_align="left", expand=False)


class Display:
    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, text: str = "") -> None:
        # Wrapped on a terminal; whole lines in a file or a CI log.
        self.console.print(text, highlight=False, markup=False, soft_wrap=not self.console.is_terminal)

    @contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """A step that takes a while: what is being done, then what is done, with the time that it took."""
        started = time.monotonic()
        if not self.console.is_terminal:
            yield
        else:
            with self.console.status(f"{doing} …"):
                yield
        self.say(f"{done}: {time.monotonic() - started:.1f} s")

    @contextmanager
    def live(self) -> Iterator[Callable[[Progress], None]]:
        """A function that shows how it stands, to be called a few times a second."""
        if not self.console.is_terminal:
            yield _Lines(self)
            return
        with Live(console=self.console, auto_refresh=False, transient=True) as live:
            yield lambda progress: live.update(panel(progress), refresh=True)

    def report(self, figures: Figures, failed: list[str], limit: int, *, hints: bool = True) -> None:
        self.say()
        self.console.print(_latencies(figures))
        self.console.print(_rest(figures, limit))
        self.say()
        if failed:
            for sentence in failed:
                self.console.print(Text(f"FAILED: {sentence}", style="bold red"))
            return
        sentence = shown(figures, limit)
        self.say(f"Shown: {sentence[0].lower()}{sentence[1:]}")
        if hints:
            self.say(_HINTS)


class _Lines:
    def __init__(self, display: Display) -> None:
        self._display = display
        self._last = float("-inf")

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            self._display.say(line(progress))


def _latencies(figures: Figures) -> Table:
    table = Table(title=LATENCY_TITLE, title_justify="left", title_style="bold")
    for name in LATENCY_HEAD:
        table.add_column(name, justify="left" if name == "tenant" else "right")
    for row in latency_rows(figures):
        table.add_row(*row)
    return table


def _rest(figures: Figures, limit: int) -> Table:
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for row in rest_rows(figures, limit):
        table.add_row(*row)
    return table
