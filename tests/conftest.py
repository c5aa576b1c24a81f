"""What every test may ask for. The servers themselves come with `tests.settings`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from redis import Redis


@pytest.fixture
def redis() -> Iterator[Redis]:
    """The Redis of this test run, empty. Redis is shared by all tests: who writes to it takes this fixture."""
    with Redis.from_url(settings.REDIS_URL) as client:
        client.flushall()
        yield client
