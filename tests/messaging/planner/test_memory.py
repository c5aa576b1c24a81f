"""Memory does not grow with the list (DESIGN 10: at most 200 MB from 10 k to 1 M recipients)."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.models import Tenant
from messaging.models import Send
from tests.messaging.planner.rig import start_child

LIMIT = 200  # MiB, the process as a whole
GROWTH = 16  # MiB between 20,000 and 200,000 rows; holding the rows would take ten times that


@pytest.mark.process
def test_memory_is_flat(committed_tenant: Tenant, tmp_path: Path) -> None:
    child = start_child("tests.messaging.planner.child", "memory", committed_tenant.pk, tmp_path)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    small, large = map(float, output.split())
    assert large <= LIMIT
    assert large - small <= GROWTH
    assert Send.objects.count() == 220_000
