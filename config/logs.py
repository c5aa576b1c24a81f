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
from typing import Any

from config.env import Env

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = {k: v for k, v in vars(record).items() if k not in _STANDARD}
    if record.exc_info and record.exc_info[0] is not None:
        fields["error"] = record.exc_info[0].__name__
        frames = traceback.extract_tb(record.exc_info[2])
        fields["at"] = " < ".join(f"{f.filename.rsplit('/', 1)[-1]}:{f.lineno}:{f.name}" for f in reversed(frames[-6:]))
    return fields


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
