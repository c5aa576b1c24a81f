"""What visitors send that is not a request: refused at the edge, and in no log line."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client
from gunicorn.config import Config
from gunicorn.http.errors import InvalidRequestLine

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


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_a_field_that_is_not_plain_is_its_type(formatter: logging.Formatter) -> None:
    """Django's own fields are requests, which show their query string; in ours, nothing shows itself as it likes."""

    class Request:
        def __repr__(self) -> str:
            return f"<POST /admin/?q={RAW}>"

    for name in ("django.security.csrf", "messaging.test"):
        record = logging.LogRecord(name, logging.WARNING, "", 0, "refused", (), None)
        vars(record).update({"request": Request(), "all": [Request(), {"a": Request()}], "status_code": 403})
        line = formatter.format(record)
        assert RAW not in line
        assert "403" in line
    record = logging.LogRecord("django.db.backends", logging.DEBUG, "", 0, "(%s)", (1,), None)
    vars(record).update({"sql": f"SELECT '{RAW}'", "params": (RAW,)})
    assert RAW not in formatter.format(record)


def _written(say: Callable[[Quiet], None]) -> str:
    logger = Quiet(Config())
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger.error_log.addHandler(handler)
    try:
        say(logger)
    finally:
        logger.error_log.removeHandler(handler)
    return stream.getvalue()


def test_gunicorn_s_lines_do_not_quote_a_request() -> None:
    def say(logger: Quiet) -> None:
        logger.warning("Invalid request from ip=%s: %s", "127.0.0.1", RAW)
        logger.error("Worker (pid:%s) exited with code %s.", 7, 3)
        try:
            raise InvalidRequestLine(RAW)  # noqa: TRY301
        except InvalidRequestLine as error:
            logger.warning(f"Invalid request from ip=127.0.0.1: {error}")  # as gunicorn does
            logger.exception("Error handling request %s %s", "GET", f"/{RAW}")
            logger.log("critical", str(error))
        logger.setup(Config())  # again, as at a reload of the configuration
        logger.debug(f"Ignored premature client disconnection. {RAW}")

    written = _written(say)
    assert RAW not in written
    assert "exited with code 3" in written
    assert written.count("InvalidRequestLine test_edges.py:") == 3


def test_why_an_application_does_not_start_is_told_in_full() -> None:
    def say(logger: Quiet) -> None:
        try:
            raise ImproperlyConfigured("SECRET_KEY is not set.")  # noqa: TRY301
        except ImproperlyConfigured:
            logger.exception("Exception in worker process")

    assert "SECRET_KEY is not set." in _written(say)
