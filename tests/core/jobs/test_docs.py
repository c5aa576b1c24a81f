"""The examples of docs/reliability.md do what is said beside them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dramatiq
import pytest

from core.models import ProcessedJob

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = (Path(__file__).parents[3] / "docs" / "reliability.md").read_text()


def _run(marker: str) -> dict[str, Any]:
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.S | re.M)
    names: dict[str, Any] = {}
    exec(next(block for block in blocks if marker in block), names)
    return names


def test_the_actor_is_a_job() -> None:
    actor = _run("@dramatiq.actor")["import_chunk"]
    try:
        actor(4, 2)
        actor(4, 2)
    finally:
        del dramatiq.get_broker().actors["import_chunk"]
    assert ProcessedJob.objects.get().job_key == "import:4:2"
    assert ProcessedJob.objects.get().done_at is not None


def test_the_work_in_two_parts_is_a_job() -> None:
    stored: list[int] = []
    _run("fetch_and_store")["fetch_and_store"](7, lambda upload: [upload], stored.extend)
    assert stored == [7]
    assert ProcessedJob.objects.get().job_key == "fetch:7"
