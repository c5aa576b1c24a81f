"""Adapters of the kinds that Resend is not pass the suites as well."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from messaging.providers.resend.adapter import ResendAdapter
from tests.messaging.providers.confirmations import AtMostOnce, Verifiable
from tests.messaging.providers.conformance import SECRET
from tests.messaging.providers.conformance_ask import AskingConformance
from tests.messaging.providers.resend import test_adapter
from tests.messaging.providers.stage import Response


class TestAtMostOnce(test_adapter.TestConformance):
    def make_adapter(self, base_url: str) -> ResendAdapter:
        return AtMostOnce(api_key=SECRET, base_url=base_url)


class TestVerifiable(test_adapter.TestConformance, AskingConformance):
    def make_adapter(self, base_url: str) -> ResendAdapter:
        return Verifiable(api_key=SECRET, base_url=base_url)

    def having(self, send_ids: Sequence[UUID]) -> Response:
        lines = [f'{{"id": "{self.provider_id(s)}", "tags": {{"send_id": "{s}"}}}}\n' for s in send_ids]
        return Response(200, "".join(lines).encode(), {"content-type": "application/x-ndjson"})


def test_an_adapter_that_cannot_be_asked_says_so_loudly() -> None:
    adapter = AtMostOnce(api_key=SECRET, base_url="http://127.0.0.1:1")
    with pytest.raises(AssertionError, match="cannot be asked"):
        adapter.ask([], idempotency_key="k", timeout=1)
