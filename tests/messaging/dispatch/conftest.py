from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from devtools.sandbox.process import Sandbox
from tests.rig import Rig, rigged


@pytest.fixture
def rig(transactional_db: None, redis: Redis, sandbox: Sandbox) -> Iterator[Rig]:
    with rigged(sandbox, redis) as rig:
        yield rig
