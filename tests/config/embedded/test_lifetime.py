"""When embedded servers start and when they stop, with real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from redis import Redis

from tests.config.embedded.conftest import end_keeper
from tests.config.embedded.processes import EXEC_CLIENT, Client, Watch

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the end of foreign processes is awaited through pidfds"),
]

Start = Callable[..., Client]


def assert_serving(client: Client) -> None:
    with psycopg.connect(client.env["DATABASE_URL"]) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("dualrail",)
    with Redis.from_url(client.env["REDIS_URL"]) as redis:
        assert redis.ping()


def test_servers_start_are_shared_and_stop_after_the_last_client(start: Start, folder: Path) -> None:
    first = start()
    assert_serving(first)
    second = start()
    assert second.status == first.status
    assert second.env == first.env

    watch = Watch(*first.status.values())
    first.leave()
    assert_serving(second)
    second.leave()
    watch.wait_gone(10)
    assert "database system is shut down" in (folder / "postgres.log").read_text()
    assert not Path(first.env["EMBEDDED_CONTROL"]).parent.exists()


def test_two_clients_at_the_same_time_get_one_pair(start: Start) -> None:
    clients = [start(wait=False) for _ in range(4)]
    assert len({tuple(client.ready().status.items()) for client in clients}) == 1


def test_data_survives_a_stop(start: Start) -> None:
    first = start()
    with psycopg.connect(first.env["DATABASE_URL"]) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    end_keeper(first)

    second = start()
    with psycopg.connect(second.env["DATABASE_URL"]) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_client_that_is_killed_leaves_nothing_behind(
    start: Start, environment: dict[str, str], folder: Path, number: signal.Signals
) -> None:
    environment["EMBEDDED_THROWAWAY"] = "1"
    client = start()
    watch = Watch(*client.status.values())
    client.kill(number)
    watch.wait_gone(10)
    assert not folder.exists()


def test_ctrl_c_of_one_client_does_not_disturb_another(start: Start) -> None:
    first, second = start(), start()
    with psycopg.connect(second.env["DATABASE_URL"]) as connection:
        first.kill(signal.SIGINT)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert_serving(second)


def test_servers_die_with_a_killed_keeper_and_the_next_start_works(start: Start) -> None:
    first = start()
    servers = Watch(first.status["postgres"], first.status["redis"])
    os.kill(first.status["keeper"], signal.SIGKILL)
    servers.wait_gone(10)

    second = start()
    assert second.status["keeper"] != first.status["keeper"]
    assert_serving(second)


def test_a_new_keeper_does_not_wait_for_the_servers_of_a_killed_one_to_be_gone(start: Start) -> None:
    """It starts its own on their heels, and only once they have let go of the data."""
    first = start()
    os.kill(first.status["keeper"], signal.SIGKILL)
    assert_serving(start())


def test_a_crash_of_everything_is_recovered_from(start: Start) -> None:
    first = start()
    everything = Watch(*first.status.values())
    for name in ("keeper", "postgres", "redis"):
        os.kill(first.status[name], signal.SIGKILL)
    everything.wait_gone(10)
    assert_serving(start())


def test_a_pid_file_that_names_somebody_else_is_stale(start: Start, folder: Path) -> None:
    first = start()
    end_keeper(first)
    (folder / "postgres" / "postmaster.pid").write_text(f"{os.getpid()}\n{folder / 'postgres'}\n")
    assert_serving(start())


def test_the_claim_survives_exec(start: Start, environment: dict[str, str]) -> None:
    environment["EMBEDDED_THROWAWAY"] = "1"  # no linger: without the claim the servers would stop at once
    client = start(script=EXEC_CLIENT)
    assert client.say("another program now") == "another program now"
    assert_serving(client)
    watch = Watch(*client.status.values())
    client.leave()
    watch.wait_gone(10)
