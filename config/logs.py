"""Structured logs: one event name, then fields. Ids, counts and codes only; never an address, a body or a key.

`log.info("batch_accepted", extra={"batch": batch_id, "items": 100})` becomes one line of JSON in production and one
readable line in development. Only fields in `extra` are written, and a formatted exception is its type and place, not
its text (texts of foreign exceptions may quote data).
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any
from uuid import UUID

from config.env import Env

#: What a field may be. Of anything else only the type is written: how a request, a statement or an exception shows itself
#: is decided elsewhere, and a request shows its query string.
_PLAIN = (str, int, float, UUID, datetime, type(None))
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def place_of(
    error: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None] | bool | None,
) -> tuple[str, ...]:
    """Type and place of an exception (`exc_info`), innermost first; nothing if there is none."""
    if not isinstance(error, tuple) or error[0] is None:
        return ()
    frames = reversed(traceback.extract_tb(error[2])[-6:])
    return (
        error[0].__name__,
        " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}:{frame.name}" for frame in frames),
    )


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    given = {k: v for k, v in vars(record).items() if k not in _STANDARD}
    if record.name.startswith("django"):  # its fields are requests, statements and their parameters
        given = {k: v for k, v in given.items() if isinstance(v, int)}
    fields = {k: _plain(v) for k, v in given.items()}
    if where := place_of(record.exc_info):
        fields["error"], fields["at"] = where
    return fields


def _plain(value: object) -> object:
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value if isinstance(value, _PLAIN) else type(value).__name__


def _event(record: logging.LogRecord) -> str:
    """Our own events are names. Texts of Django quote what a visitor sent (a host name, a path): only their template, if
    there is one, is written."""
    if not record.name.startswith("django"):
        return record.getMessage()
    return str(record.msg) if record.args else "(text withheld)"


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _event(record),
        }
        fields = _fields(record)
        if "at" in fields:
            fields["trace"] = fields.pop("at")
        return json.dumps(line | fields, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        fields = " ".join(f"{k}={v}" for k, v in _fields(record).items())
        return f"{at} {record.levelname.lower():7} {record.name:24} {_event(record)} {fields}".rstrip()


def logging_config(env: Env) -> dict[str, Any]:
    formatter = JsonFormatter if env.log_format == "json" else TextFormatter
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": env.log_level},
        "loggers": {
            "dramatiq": {"level": "WARNING"},
            "django.request": {"level": "ERROR"},
            "django.utils.autoreload": {"level": "WARNING"},
            "urllib3": {"level": "WARNING"},
        },
    }
