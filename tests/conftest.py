"""What every test may ask for. The servers themselves come with `tests.settings`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module

import pytest
from django.apps import AppConfig, apps
from django.conf import settings
from django.db.models.signals import post_migrate
from django.dispatch import receiver
from redis import Redis

from devtools.sandbox.process import Sandbox
from tests.rig import Rig, rigged


@receiver(post_migrate)
def _what_migrations_wrote(sender: AppConfig, **_: object) -> None:
    """A transactional test ends by emptying all tables; the next test finds a database as it was migrated all the same."""
    if sender.label == "messaging":
        import_module("messaging.migrations.0002_defaults").seed(apps, None)
        import_module("messaging.migrations.0010_bucket_rail").drop_the_seeded_default(apps, None)


@pytest.fixture
def redis() -> Iterator[Redis]:
    """The Redis of this test run, its database emptied. All tests share it: who writes to it takes this fixture."""
    with Redis.from_url(settings.REDIS_URL) as client:
        client.flushdb()
        yield client


@pytest.fixture(scope="session")
def _shared_sandbox() -> Iterator[Sandbox]:
    with Sandbox("--rate", "0", "--latency-ms", "0") as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(_shared_sandbox: Sandbox) -> Sandbox:
    """The simulated provider, without limit or latency; one process for all tests, empty at the start of each."""
    _shared_sandbox.reset()
    return _shared_sandbox


@pytest.fixture
def start() -> Iterator[Callable[..., Sandbox]]:
    """Starts a sandbox with other flags, which ends with the test."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(Sandbox(*flags))


@pytest.fixture
def rig(transactional_db: None, redis: Redis, sandbox: Sandbox) -> Iterator[Rig]:
    """The dispatcher in this process, with the sandbox as its provider."""
    with rigged(sandbox, redis) as rig:
        yield rig
