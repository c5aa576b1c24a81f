from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.broker import queues
from messaging.ledger import buckets
from tests.messaging.api.blasts.rig import Blasts
from tests.messaging.tenant_rig import Speaker, ensure_bucket, make_tenant


@pytest.fixture
def speaker(db: None) -> Iterator[Speaker]:
    """A tenant with a key, a sender domain and a provider that has its bucket."""
    ensure_bucket()
    queues.breaker.reset()
    yield Speaker.of(make_tenant())
    buckets.forget()


@pytest.fixture
def blasts(speaker: Speaker) -> Blasts:
    """The same tenant, speaking about blasts."""
    return Blasts(speaker)
