"""The same over ASGI, where a body may come without any header that says how long it is."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest

from messaging.api.parsers import MAX_BODY
from messaging.api.sends.views import SendsView
from tests.messaging.tenant_rig import BODY, Speaker


def post(speaker: Speaker, body: bytes, *extra: tuple[bytes, bytes]) -> tuple[int, Any]:
    """As Django's ASGI handler does once it has received the body."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), *extra]
    headers.append((b"authorization", f"Bearer {speaker.key}".encode()))
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/messaging/sends",
        "query_string": b"",
        "headers": headers,
    }
    response = SendsView.as_view()(ASGIRequest(scope, io.BytesIO(body))).render()
    return response.status_code, json.loads(response.content)


@pytest.mark.parametrize("extra", [(), ((b"transfer-encoding", b"chunked"),)], ids=["no length", "chunked"])
def test_a_body_without_a_length(speaker: Speaker, extra: tuple[tuple[bytes, bytes], ...]) -> None:
    assert post(speaker, json.dumps(BODY).encode(), *extra)[0] == 202
    assert speaker.sends() == 1
    for body, status, code in [(b"", 400, "invalid_json"), (b" " * (MAX_BODY + 1), 413, "body_too_large")]:
        answer = post(speaker, body, *extra)
        assert (answer[0], answer[1]["error"]["code"]) == (status, code)
