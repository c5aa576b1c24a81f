"""gunicorn's log without what visitors send: `gunicorn --logger-class config.gunicorn_logs.Quiet`.

Its lines about requests that it cannot read, or that failed, quote them: a request line without its version may hold an
address, a header line without its colon a key. Most of them are put together before the log sees them.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from gunicorn.glogging import Logger

from config.logs import place_of

#: The application did not load: there was no visitor yet, and the operator needs every word.
_AT_START = "Exception in worker process"
#: Of an access log, should somebody switch it on: what holds nothing of a path, a query or a header.
_ATOMS = frozenset("hltmsHbBTDMLp")


def withhold(record: logging.LogRecord) -> bool:
    """Leave of a line what gunicorn itself says: its template and numbers, and an exception's type and place. What was put
    together before (a text without arguments) is not written at all."""
    if record.levelno == logging.INFO or record.msg == _AT_START:
        return True
    text = _filled(str(record.msg), record.args) if record.args else "(text withheld)"
    error = record.exc_info or sys.exc_info()
    record.msg, record.args = " ".join((text, *place_of(error))), ()
    record.exc_info = record.exc_text = record.stack_info = None
    return True


def _filled(template: str, arguments: Any) -> str:
    values = arguments if isinstance(arguments, tuple) else ()
    try:
        return template % tuple(value if isinstance(value, int) else "…" for value in values)
    except (TypeError, ValueError):
        return template


class Quiet(Logger):  # type: ignore[misc]  # gunicorn is not typed
    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.addFilter(withhold)

    def atoms(self, *args: Any) -> dict[str, Any]:
        return {name: value for name, value in super().atoms(*args).items() if name in _ATOMS}
