"""What every test may ask for. The servers themselves come with `tests.settings`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from redis import Redis


@pytest.fixture
def redis() -> Iterator[Redis]:
    """The Redis of this test run, its database emptied. All tests share it: who writes to it takes this fixture."""
    with Redis.from_url(settings.REDIS_URL) as client:
        client.flushdb()
        yield client
