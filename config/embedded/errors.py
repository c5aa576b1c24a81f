"""The one error of this package, and the log lines that explain it."""

from __future__ import annotations

from pathlib import Path

#: Enough for the message of a server that refuses to start, short enough to be read.
_TAIL_LINES = 12
_TAIL_BYTES = 8_192

ADVICE = "Without embedded servers: set DATABASE_URL and REDIS_URL to servers of your own."


class EmbeddedServiceError(RuntimeError):
    """An embedded server cannot be had. The text is for the person at the terminal: what happened, and what to do."""


def with_log(message: str, log: Path) -> str:
    """`message`, followed by the last lines of `log` if it has any."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()[-_TAIL_LINES:]
    except FileNotFoundError:
        lines = []
    if not lines:
        return f"{message}\nIts log {log} is empty."
    return f"{message}\nThe end of {log}:\n" + "\n".join(f"    {line}" for line in lines)
