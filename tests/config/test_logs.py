"""`config.logs`: one line, parsable, and nothing that an exception says."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from uuid import UUID

import pytest

from config.env import Env
from config.logs import JsonFormatter, TextFormatter, logging_config

SECRET = "jane@example.com"
FORMATTERS = [JsonFormatter(), TextFormatter()]


def _record(message: str, **fields: object) -> logging.LogRecord:
    """A record with an exception that quotes data, in its text and in its chain."""
    try:
        raise ValueError(f"duplicate key value ({SECRET})") from KeyError(SECRET)  # noqa: TRY301
    except ValueError:
        return logging.getLogger("messaging.test").makeRecord(
            "messaging.test", logging.ERROR, __file__, 1, message, (), sys.exc_info(), extra=fields
        )


@pytest.mark.parametrize("formatter", FORMATTERS, ids=["json", "text"])
def test_an_exception_is_its_type_and_place_and_not_its_text(formatter: logging.Formatter) -> None:
    record = _record("claim_failed", batch=7)
    record.exc_text = f"left here by another handler: {SECRET}"
    record.stack_info = None
    line = formatter.format(record)
    assert SECRET not in line
    assert "\n" not in line
    assert "ValueError" in line
    assert "test_logs.py" in line
    assert "batch" in line


def test_json_has_fixed_fields_and_the_extra_ones() -> None:
    line = json.loads(JsonFormatter().format(_record("claim_failed", batch=UUID(int=7), items=100, rail="marketing")))
    assert line["event"] == "claim_failed"
    assert line["level"] == "error"
    assert line["logger"] == "messaging.test"
    assert line["error"] == "ValueError"
    assert line["batch"] == "00000000-0000-0000-0000-000000000007"
    assert line["items"] == 100
    assert line["at"].startswith("20")
    assert line["at"].endswith("+00:00")
    assert line["trace"].startswith("test_logs.py:")


def test_a_message_with_line_breaks_stays_one_line_of_json() -> None:
    line = JsonFormatter().format(_record('forged\n{"event": "other"}'))
    assert "\n" not in line
    assert json.loads(line)["event"] == 'forged\n{"event": "other"}'


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_the_configuration_is_valid_and_its_lines_go_to_stderr(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logging.config.dictConfig(logging_config(Env.read({"DEBUG": "1", "LOG_FORMAT": log_format})))
        logging.getLogger("messaging.test").info("batch_accepted", extra={"items": 100})
        lines = capsys.readouterr().err.splitlines()
    finally:
        root.handlers[:], root.level = before
    assert len(lines) == 1
    assert "batch_accepted" in lines[0]
    assert "100" in lines[0]
