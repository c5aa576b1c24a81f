"""Arbitrary JSON: never a 5xx, and what is refused leaves nothing behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messaging.models import Send
from tests.messaging.tenant_rig import BODY, Speaker, error_of

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.sampled_from(
        ["", "email", "marketing", "ada@example.org", "Shop <a@shop.example>", "{{ a }}", "{% if a %}", "{{ now }}"]
    )
    | st.sampled_from(["2030-01-01T00:00:00Z", "2030-W01-1T00+23:59:59", "a\r\nb", "\x00", "‮", "x" * 1200, "{{'"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(
    [*BODY, "channel", "reply_to", "html", "headers", "variables", "not_before", "expires_at", "rail", "attachments"]
)
#: A valid body with a few fields changed comes further than one that is arbitrary throughout.
changed = st.dictionaries(fields, values, min_size=1, max_size=2).map(lambda change: BODY | change)
keys = st.none() | st.sampled_from(["a", "b", ""]) | st.text(st.characters(max_codepoint=255), max_size=20)


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(body=changed | st.dictionaries(fields | st.text(max_size=12), values, max_size=6) | values, key=keys)
def test_json_never_fails_the_server(speaker: Speaker, body: Any, key: str | None) -> None:
    _check(speaker, json.dumps(body).encode(), {} if key is None else {"Idempotency-Key": key})


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200) | st.text(max_size=100).map(lambda text: ('{"to": "' + text + '"}').encode()))
def test_bytes_never_fail_the_server(speaker: Speaker, body: bytes) -> None:
    _check(speaker, body, {})


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.text(st.characters(max_codepoint=255), max_size=80), tail=st.text(max_size=60))
def test_headers_and_paths_never_fail_the_server(speaker: Speaker, header: str, tail: str) -> None:
    for authorization in (header, f"Bearer {header}", f"Bearer drk_{header}"):
        answer = speaker.client.get("/v1/messaging/sends/x", headers={"Authorization": authorization})
        assert answer.status_code == 401
        error_of(answer)
    answer = speaker.get(tail)
    assert answer.status_code in (404, 405) or "/" in tail or "?" in tail or "#" in tail


def _check(speaker: Speaker, body: bytes, headers: dict[str, str]) -> None:
    before = Send.objects.count()
    answer = speaker.post(body, **headers)
    assert answer.status_code in (202, 400, 403, 409, 413), (answer.status_code, answer.content)
    if answer.status_code == 202:
        fresh = "Idempotent-Replayed" not in answer
        assert Send.objects.count() == before + fresh
        assert speaker.get(answer.json()["id"]).status_code == 200
    else:
        error_of(answer)
        assert Send.objects.count() == before


@pytest.mark.parametrize("seed", range(3))
def test_the_fuzz_reaches_the_ledger(speaker: Speaker, seed: int) -> None:
    """What the strategies start from is valid: else they would test the first refusal only."""
    _check(speaker, json.dumps(BODY | {"variables": {"a": seed}}).encode(), {"Idempotency-Key": str(seed)})
    assert speaker.sends() == 1
