"""Killing and restarting a server through its keeper, as the chaos tests do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest
import redis

from config.embedded import EmbeddedServiceError, command
from tests.config.embedded.processes import ROOT, Client

pytestmark = pytest.mark.process


@pytest.fixture
def client(start: Callable[..., Client], monkeypatch: pytest.MonkeyPatch) -> Client:
    client = start()
    monkeypatch.setenv("EMBEDDED_CONTROL", client.env["EMBEDDED_CONTROL"])
    return client


def test_redis_is_down_until_it_is_started_again(client: Client, start: Callable[..., Client]) -> None:
    with redis.Redis.from_url(client.env["REDIS_URL"]) as connection:
        connection.set("key", "value")
        assert command("kill", "redis")["servers"]["redis"]["pid"] is None
        with pytest.raises(redis.ConnectionError):
            connection.ping()
        assert start().status["redis"] is None  # a worker that is restarted meanwhile does not revive it

        after = command("start", "redis")["servers"]["redis"]
        assert after["url"] == client.env["REDIS_URL"]
        assert connection.get("key") is None  # nothing of it is on disk


def test_postgres_comes_back_at_its_address_with_its_data(client: Client) -> None:
    with psycopg.connect(client.env["DATABASE_URL"]) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    pids = {client.status["postgres"]}
    for how in (("restart",), ("kill", "start"), ("stop", "start")):
        for do in how:
            status = command(do, "postgres")
        pids.add(status["servers"]["postgres"]["pid"])
        with psycopg.connect(client.env["DATABASE_URL"]) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    assert len(pids) == 4


def test_nonsense_is_answered(client: Client) -> None:
    for do, server in (("explode", "redis"), ("kill", "mysql"), ("explode", None)):
        with pytest.raises(EmbeddedServiceError, match="does not know"):
            command(do, server)
    assert command("status")["keeper"] == client.status["keeper"]


def test_without_a_keeper_a_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDDED_CONTROL", "/nonexistent/control")
    with pytest.raises(EmbeddedServiceError, match="No embedded services"):
        command("status")
    monkeypatch.delenv("EMBEDDED_CONTROL")
    with pytest.raises(EmbeddedServiceError, match="No embedded services"):
        command("status")


def test_run_keeps_both_servers_up_for_a_shell_command(environment: dict[str, str]) -> None:
    environment["EMBEDDED_THROWAWAY"] = "1"
    embedded = [sys.executable, "-m", "config.embedded"]
    done = subprocess.run(
        [*embedded, "run", *embedded, "status"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    servers = json.loads(done.stdout)["servers"]
    assert all(servers[name]["pid"] for name in ("postgres", "redis"))
