"""gunicorn's log without what visitors send: `gunicorn --logger-class config.gunicorn_logs.Quiet`.

Its warnings about requests that it cannot read quote them: a header line that lacks its colon may hold an API key.
"""

from __future__ import annotations

from typing import Any

from gunicorn.glogging import Logger


class Quiet(Logger):  # type: ignore[misc]  # gunicorn is not typed
    """Warnings and errors are written as their template, without the values."""

    def warning(self, msg: object, *args: Any, **kwargs: Any) -> None:
        super().warning("%s", msg, **kwargs)

    def error(self, msg: object, *args: Any, **kwargs: Any) -> None:
        super().error("%s", msg, **kwargs)
