"""Invariant 4: a provider with a batch endpoint has no other send path. Adapters call only the endpoints of their
allow-list; contacts, audiences, segments, broadcasts are on none."""

from __future__ import annotations

import pytest

from messaging.domain.rails import Rail
from messaging.providers.http.client import ForbiddenEndpointError, HttpAdapter
from messaging.providers.registry import adapters
from tests.factories import make_tenant, submit_some
from tests.rig import Rig


def test_one_send_or_a_thousand_take_the_batch_endpoint(rig: Rig) -> None:
    tenant = make_tenant()
    submit_some(tenant, 1)
    rig.drain()
    submit_some(tenant, 210, category="marketing")
    rig.drain(Rail.MARKETING)
    stats = rig.sandbox.stats()
    assert set(stats["by_route"]) == {"POST /emails/batch"}
    assert stats["unknown_routes"] == []


def test_no_adapter_may_reach_what_manages_recipients() -> None:
    for adapter in adapters().values():
        assert adapter.endpoints
        for _, path in adapter.endpoints:
            assert not any(word in path for word in ("contact", "audience", "segment", "broadcast", "topic"))
        posts = [path for method, path in adapter.endpoints if method != "GET"]
        assert len(posts) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/emails"), ("POST", "/broadcasts"), ("POST", "/audiences/1/contacts"), ("DELETE", "/emails/1")],
)
def test_anything_else_is_refused_before_a_byte_leaves(rig: Rig, method: str, path: str) -> None:
    for adapter in adapters().values():
        assert isinstance(adapter, HttpAdapter)
        with pytest.raises(ForbiddenEndpointError):
            adapter.http.request(method, path, headers={}, body=b"{}", timeout=1)
    assert rig.sandbox.stats()["requests_received"] == 0
