import pytest
from redis import Redis

from tests.core.governor.rig import TimedGovernor


@pytest.fixture
def governor(redis: Redis) -> TimedGovernor:
    """A governor whose clock stands still until the test moves it; one request at a time, ten a second."""
    return TimedGovernor(redis)
