"""Paths, methods and faults: whatever happens under /v1/, the answer is JSON with a stable code."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
import pytest
from django.db import InterfaceError, OperationalError, close_old_connections, connection
from django.http import UnreadablePostError
from django.test import Client, override_settings
from rest_framework import exceptions

from config.logs import JsonFormatter
from devtools.stack import url_of
from messaging.api.errors import problem_of
from messaging.api.sends import fields, views
from tests.messaging.tenant_rig import BODY, Speaker, error_of

URL = "/v1/messaging/sends"


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/x", "/v1/messaging", "/v1/messaging/sends/", f"{URL}/a/b", "/v1/é\n"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_path_is_a_404_in_json(path: str, method: str, debug: bool) -> None:
    with override_settings(DEBUG=debug):
        answer = Client().generic(method, path)
    assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")


def test_elsewhere_a_404_is_django_s_own() -> None:
    assert Client().get("/nowhere")["Content-Type"].startswith("text/html")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("OPTIONS", URL, "GET, POST, HEAD"),
        ("PUT", URL, "GET, POST, HEAD"),
        ("GET", f"{URL}/x/cancel", "POST"),
        ("POST", f"{URL}/x", "GET, HEAD"),
        ("DELETE", f"{URL}/x", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_a_405(speaker: Speaker, method: str, path: str, allow: str) -> None:
    answer = speaker.client.generic(method, path, headers=speaker.headers())
    assert (answer.status_code, error_of(answer)["code"]) == (405, "method_not_allowed")
    assert set(answer["Allow"].split(", ")) - {"OPTIONS"} >= set(allow.split(", ")) - {"HEAD"}


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "nonsense", "*/*", ""])
def test_the_answer_is_json_whatever_is_accepted(speaker: Speaker, accept: str) -> None:
    assert speaker.post(BODY, Accept=accept).status_code == 202
    assert speaker.client.get(f"{URL}/x?format=xml", headers=speaker.headers(Accept=accept)).status_code == 404


def test_an_unknown_host_is_a_400_in_json() -> None:
    answer = Client().post(URL, headers={"Host": "evil.example"})
    assert (answer.status_code, error_of(answer)["code"]) == (400, "bad_request")
    assert "evil" not in answer.content.decode()


SECRET = "postgresql://user:password@host/ada@example.org"  # what a foreign exception may quote


@pytest.mark.parametrize("debug", [False, True])
def test_an_unexpected_exception_is_a_500_without_text(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, debug: bool
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(views, "submit_many", fail)
    with override_settings(DEBUG=debug):
        answer = speaker.client.post(
            f"{URL}?q=ada@example.org", BODY, content_type="application/json", headers=speaker.headers()
        )
    assert (answer.status_code, error_of(answer)["code"]) == (500, "internal_error")
    assert "ada" not in answer.content.decode()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    line = JsonFormatter().format(errors[0])
    assert "request_failed" in line
    assert "RuntimeError" in line
    assert "fail" in line  # the place
    assert "ada" not in line


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_the_database_away_is_a_503(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    def fail(*args: object) -> None:
        raise kind(SECRET)

    monkeypatch.setattr(views, "submit_many", fail)
    answer = speaker.send()
    assert (answer.status_code, error_of(answer)["code"]) == (503, "database_unavailable")
    assert answer["Retry-After"] == "5"
    assert "ada" not in answer.content.decode() + caplog.text + repr([vars(r) for r in caplog.records])


def test_a_500_outside_of_the_views_is_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr("django.middleware.common.CommonMiddleware.process_request", fail)
    with override_settings(DEBUG=False):
        api, page = (Client(raise_request_exception=False).get(path) for path in (URL, "/admin/"))
    assert (api.status_code, error_of(api)["code"]) == (500, "internal_error")
    assert (page.status_code, page["Content-Type"]) == (500, "text/html; charset=utf-8")


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (exceptions.Throttled(wait=2.4), 429, "too_many_requests", 3),
        (exceptions.Throttled(), 429, "too_many_requests", None),
        (exceptions.ParseError(SECRET), 400, "invalid_request", None),
        (exceptions.AuthenticationFailed(SECRET), 401, "authentication_failed", None),
        (exceptions.PermissionDenied(SECRET), 403, "permission_denied", None),
        (exceptions.NotAcceptable(), 406, "not_acceptable", None),
        (exceptions.ValidationError(SECRET), 400, "invalid", None),
        (UnreadablePostError(SECRET), 400, "body_incomplete", None),
        (KeyError(SECRET), 500, "internal_error", None),
    ],
)
def test_what_the_framework_raises(error: Exception, status: int, code: str, retry_after: int | None) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.code, problem.retry_after) == (status, code, retry_after)
    assert SECRET not in problem.message


def test_the_fields_that_are_documented_are_the_fields_there_are() -> None:
    known: Any = {"to", "from", "subject", "category", "channel", "reply_to", "html", "text", "headers", "variables"}
    assert {*fields.REQUIRED, *fields.OPTIONAL} == known | {"not_before", "expires_at"}


@pytest.fixture
def committed(transactional_db: None, speaker: Speaker) -> Speaker:
    return speaker


def test_a_database_that_takes_no_writes_any_more_is_a_503_and_the_next_one_has_another_connection(
    committed: Speaker,
) -> None:
    """A failover: the primary that this process is connected to has become a standby."""
    assert committed.send().status_code == 202
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    answer = committed.send()
    assert (answer.status_code, error_of(answer)["code"], answer["Retry-After"]) == (503, "database_unavailable", "5")
    close_old_connections()  # as between any two requests
    assert committed.send().status_code == 202


def test_a_row_that_somebody_holds_for_too_long_is_a_503(committed: Speaker) -> None:
    path = f"{URL}/{committed.send().json()['id']}/cancel"
    with psycopg.connect(url_of(connection.settings_dict)) as other:
        other.execute("SELECT FROM messaging_sends FOR UPDATE")
        answer = committed.post({}, path)
        assert (answer.status_code, error_of(answer)["code"]) == (503, "database_unavailable")
    assert committed.post({}, path).status_code == 200


def test_a_page_of_the_admin_that_finds_the_database_away_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OperationalError(SECRET)

    monkeypatch.setattr("django.contrib.auth.views.LoginView.get", fail)
    page = Client(raise_request_exception=False).get("/admin/login/")
    assert (page.status_code, page["Retry-After"]) == (503, "5")
    assert "ada" not in page.content.decode()
