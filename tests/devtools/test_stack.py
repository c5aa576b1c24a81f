"""The whole stack as processes: on a test database, and with servers of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from django.conf import settings
from django.db import connection
from redis import Redis

from core.models import ApiKey, Tenant
from devtools.processes import CommandFailed, ProcessDied
from devtools.stack import Stack, StackError, url_of
from messaging import submit
from messaging.models import RateLimitBucket, Send, SenderDomain
from tests.config.embedded.processes import Watch
from tests.devtools.process_tree import descendants, naming

pytestmark = pytest.mark.process


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    # The rows of the migration are gone after the first test that empties the tables.
    RateLimitBucket.objects.update_or_create(
        provider="resend",
        scope="global",
        unit="request",
        tenant=None,
        defaults={"capacity": 20, "refill_per_second": 50},
    )
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    SenderDomain.objects.create(tenant=tenant, domain="acme.example")
    return tenant


@pytest.fixture
def stack(tenant: Tenant, redis: Redis, tmp_path: Path) -> Iterator[Stack]:
    with Stack(
        data_dir=tmp_path / "stack",
        database_url=url_of(connection.settings_dict),
        redis_url=settings.REDIS_URL,
        sandbox_flags=["--rate", "0", "--latency-ms", "0"],
        threads=2,
    ) as started:
        yield started


def test_on_a_test_database(stack: Stack, tenant: Tenant) -> None:
    """One test for all of it: the start of six processes is most of its time."""
    # What is submitted here is opened, sent and recorded there.
    sent = submit(tenant, to="ada@inbox.example", from_="hello@acme.example", subject="Hello", text="Hello")
    stack.sandbox.wait(emails=1)
    assert [line["tags"]["send_id"] for line in stack.sandbox.log()] == [str(sent.id)]

    # A worker of the other rail is killed, started again, and works.
    marketing = stack.worker("marketing")
    watch = Watch(marketing.pid, *descendants(marketing.pid))
    marketing.kill()
    watch.wait_gone(5)
    stack.check()
    submit(
        tenant, to="ada@inbox.example", from_="hello@acme.example", subject="News", text="News", category="marketing"
    )
    assert Send.objects.get(category="marketing").status == "queued"
    marketing.start()
    marketing.wait_ready()
    stack.sandbox.wait(emails=2)

    # Web answers, also at the same address after it was killed.
    _, key = ApiKey.issue(tenant, "test")
    for _ in range(2):
        got = requests.get(
            f"{stack.web_url}/v1/messaging/sends/{sent.id}", headers={"Authorization": f"Bearer {key}"}, timeout=20
        )
        assert got.json()["id"] == str(sent.id)
        stack.web.kill()
        stack.web.start()
        stack.web.wait_ready()

    # The sandbox comes back at the same address, and remembers nothing.
    stack.sandbox.process.kill()
    stack.sandbox.process.start()
    stack.sandbox.process.wait_ready()
    assert stack.sandbox.stats()["emails_accepted"] == 0

    # Commands run in the stack; its servers are not its own.
    assert "failed" not in stack.manage("clock", "--once")
    with pytest.raises(CommandFailed, match="no tenant with this slug"):
        stack.manage("blast", "--tenant", "nobody")
    with pytest.raises(StackError, match="belong to somebody else"):
        stack.server("restart", "redis")
    with pytest.raises(StackError, match="Another run uses"):
        Stack(data_dir=stack.data_dir).__enter__()

    # A death that nobody wanted is told, with the log.
    stack.clock.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, stack.clock.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessDied, match=r"clock died with exit code -9(.|\n)*clock_started"):
        stack.check()


def test_with_servers_of_its_own(tmp_path: Path) -> None:
    before = descendants(os.getpid())
    with Stack(data_dir=tmp_path, web=False, clock=False, workers={}) as stack:
        assert [process.name for process in stack.supervisor.processes] == ["services", "sandbox"]
        assert "DEBUG=0" in {f"{name}={value}" for name, value in stack.env.items()}
        assert stack.python("-m", "config.embedded", "status").count("url") == 2
        assert stack.database_url not in (None, url_of(connection.settings_dict))
        stack.server("restart", "redis")
        mine = descendants(os.getpid()) - before
        servers = naming(tmp_path)
        assert mine
        assert servers
        watch = Watch(*mine, *servers)
    watch.wait_gone(10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in-use.lock", "logs"]


def test_one_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    before = descendants(os.getpid())
    with (
        pytest.raises(ProcessDied, match=r"sandbox ended(.|\n)*--burst belongs to --window bucket"),
        Stack(
            data_dir=tmp_path,
            database_url="postgresql:///none",
            redis_url="redis://none",
            sandbox_flags=["--burst", "2"],
        ),
    ):
        pytest.fail("it must not start")
    assert descendants(os.getpid()) == before


def test_half_of_the_servers_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="both"):
        Stack(data_dir=tmp_path, redis_url="redis://localhost")


@pytest.mark.parametrize(
    ("database", "url"),
    [
        (
            {"NAME": "test_a b", "HOST": "/tmp/x", "PORT": "", "USER": "u", "PASSWORD": ""},
            "postgresql:///test_a%20b?host=%2Ftmp%2Fx&user=u",
        ),
        (
            {"NAME": "d", "HOST": "h", "PORT": 5432, "USER": "u", "PASSWORD": "p&?"},
            "postgresql:///d?host=h&port=5432&user=u&password=p%26%3F",
        ),
    ],
)
def test_url_of(database: dict[str, object], url: str) -> None:
    assert url_of(database) == url
