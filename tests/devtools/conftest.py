"""Sandboxes as real processes. Nothing here needs a database, Redis or Django."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from devtools.sandbox.process import Sandbox


@pytest.fixture(scope="session")
def _shared_sandbox() -> Iterator[Sandbox]:
    with Sandbox("--rate", "0", "--latency-ms", "0") as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(_shared_sandbox: Sandbox) -> Sandbox:
    """Without limit or latency; one process for all tests, empty at the start of each."""
    _shared_sandbox.reset()
    return _shared_sandbox


@pytest.fixture
def start() -> Iterator[Callable[..., Sandbox]]:
    """Starts a sandbox with other flags, which ends with the test."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(Sandbox(*flags))
