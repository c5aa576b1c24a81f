from __future__ import annotations

from collections.abc import Callable

import pytest

from core.models import Tenant
from messaging.planner import fill
from messaging.planner.rows import chunks
from tests.factories import make_tenant
from tests.messaging.tenant_rig import ensure_bucket


@pytest.fixture
def tenant(db: None) -> Tenant:
    ensure_bucket()
    return make_tenant("acme")


@pytest.fixture
def committed_tenant(transactional_db: None) -> Tenant:
    """For tests in which other connections must see what was written."""
    ensure_bucket()
    return make_tenant("acme")


@pytest.fixture
def chunk_rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes chunks small, so that a few rows are several."""

    def set_to(count: int) -> None:
        monkeypatch.setattr(fill, "chunks", lambda rows, **more: chunks(rows, max_rows=count, **more))

    return set_to
