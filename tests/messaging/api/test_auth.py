"""Bearer keys."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.contrib.auth.models import User

from core.models import ApiKey
from tests.messaging.tenant_rig import BODY, Speaker, error_of

URL = "/v1/messaging/sends"
KEY = "drk_" + "a" * 43


def post(speaker: Speaker, authorization: str | None) -> Any:
    headers = {} if authorization is None else {"Authorization": authorization}
    return speaker.client.post(URL, BODY, content_type="application/json", headers=headers)


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        (None, "not_authenticated"),
        ("", "unsupported_auth_scheme"),
        (f"Basic {KEY}", "unsupported_auth_scheme"),
        (f"Token {KEY}", "unsupported_auth_scheme"),
        (KEY, "unsupported_auth_scheme"),
        ("Bearer", "malformed_api_key"),
        ("Bearer ", "malformed_api_key"),
        ("Bearer drk_", "malformed_api_key"),
        (f"Bearer {KEY} {KEY}", "malformed_api_key"),
        (f"Bearer {KEY}\x00", "malformed_api_key"),
        (f"Bearer sk_{'a' * 43}", "malformed_api_key"),
        (f"Bearer drk_{'ü' * 43}", "malformed_api_key"),
        (f"Bearer drk_{'a' * 10_000}", "malformed_api_key"),
        (f"Bearer {KEY}", "invalid_api_key"),
    ],
)
def test_a_wrong_key_is_refused(speaker: Speaker, authorization: str | None, code: str) -> None:
    answer = post(speaker, authorization)
    assert answer.status_code == 401
    assert error_of(answer)["code"] == code
    assert answer["WWW-Authenticate"] == "Bearer"
    assert speaker.sends() == 0


def test_a_revoked_key_is_refused(speaker: Speaker) -> None:
    ApiKey.objects.get().revoke()
    answer = speaker.send()
    assert (answer.status_code, error_of(answer)["code"]) == (401, "api_key_revoked")
    assert answer["WWW-Authenticate"] == "Bearer"
    assert speaker.sends() == 0


def test_the_keys_of_a_tenant_that_is_switched_off_are_refused(speaker: Speaker) -> None:
    speaker.tenant.active = False
    speaker.tenant.save()
    answer = speaker.send()
    assert (answer.status_code, error_of(answer)["code"]) == (403, "tenant_inactive")
    assert speaker.sends() == 0


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_case_insensitive(speaker: Speaker, scheme: str) -> None:
    assert post(speaker, f"{scheme} {speaker.key}").status_code == 202


def test_reading_needs_a_key_too(speaker: Speaker) -> None:
    pk = speaker.send().json()["id"]
    answer = speaker.client.get(f"{URL}/{pk}")
    assert (answer.status_code, error_of(answer)["code"]) == (401, "not_authenticated")


def test_a_staff_session_is_no_key(speaker: Speaker) -> None:
    speaker.client.force_login(User.objects.create(username="operator", is_staff=True, is_superuser=True))
    answer = speaker.client.post(URL, BODY, content_type="application/json")
    assert (answer.status_code, error_of(answer)["code"]) == (401, "not_authenticated")


def test_no_key_is_ever_logged_or_quoted(speaker: Speaker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for authorization in (f"Bearer {KEY}", f"Bearer {KEY}!", f"Basic {KEY}", f"Bearer {speaker.key}"):
        assert KEY not in post(speaker, authorization).content.decode()
    told = caplog.text + repr([vars(record) for record in caplog.records])
    assert KEY not in told
    assert speaker.key not in told
