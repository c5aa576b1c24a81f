"""What visitors send that is not a request: refused at the edge, and in no log line."""

from __future__ import annotations

import io
import logging

import pytest
from django.test import Client
from gunicorn.config import Config

from config.gunicorn_logs import Quiet
from config.logs import JsonFormatter, TextFormatter

RAW = "ada@inbox.example"


@pytest.mark.parametrize("path", ["/admin/", "/admin/login/", "/v1/messaging/sends"])
def test_a_nul_in_a_cookie_is_a_400(path: str) -> None:
    client = Client()
    client.cookies.load({"sessionid": "x"})
    answer = client.get(path, headers={"Cookie": 'sessionid="\\000abcdefghijklmnop"'})
    assert answer.status_code == 400


def test_an_unknown_path_is_json_and_its_post_needs_no_token() -> None:
    answer = Client(enforce_csrf_checks=True).post(f"/v1/messaging/{RAW}", {})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert RAW not in answer.content.decode()


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
@pytest.mark.parametrize(
    ("message", "arguments"), [(f"Invalid HTTP_HOST header: '{RAW}'.", ()), ("Forbidden (%s): %s", ("why", f"/{RAW}"))]
)
def test_django_s_own_log_lines_are_written_without_what_they_quote(
    formatter: logging.Formatter, message: str, arguments: tuple[str, ...]
) -> None:
    record = logging.LogRecord("django.security.DisallowedHost", logging.ERROR, "", 0, message, arguments, None)
    assert RAW not in formatter.format(record)


def test_gunicorn_s_warnings_do_not_quote_a_request() -> None:
    logger = Quiet(Config())
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger.error_log.addHandler(handler)
    try:
        logger.warning("Invalid request from ip=%s: %s", "127.0.0.1", RAW)
        logger.error("Bad header %s", RAW)
    finally:
        logger.error_log.removeHandler(handler)
    assert "Invalid request from ip=%s: %s" in stream.getvalue()
    assert RAW not in stream.getvalue()
