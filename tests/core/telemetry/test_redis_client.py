"""Redis that changes under its clients: a primary that becomes a replica, and a cluster, which is refused at start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_py
from django.core.exceptions import ImproperlyConfigured

from core.db.faults import is_transient
from core.telemetry.redis_client import connect, refuse_cluster
from devtools.processes import Supervisor
from tests.core.broker.rig import OwnRedis, new_broker, until


@pytest.fixture
def own_redis() -> Iterator[OwnRedis]:
    with OwnRedis() as server:
        yield server


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OwnRedis]:
    with OwnRedis("--cluster-enabled", "yes", "--dir", str(tmp_path)) as server:
        yield server


def test_a_connection_to_what_has_become_a_replica_is_left_and_redis_counts_as_away(own_redis: OwnRedis) -> None:
    """The address may lead to the new primary by now; an open connection never does."""
    for client in (connect(own_redis.url), new_broker(own_redis.url).producer):
        before = client.client_id()
        for command in (("SET", "a", "b"), ("EVAL", "return redis.call('set', KEYS[1], 1)", 1, "a")):
            own_redis.client.replicaof("127.0.0.1", "1")
            with pytest.raises(redis_py.ConnectionError) as met:
                client.execute_command(*command)
            assert is_transient(met.value)
            own_redis.client.replicaof("NO", "ONE")
            client.execute_command(*command)
            assert client.client_id() != before
            before = client.client_id()
        client.close()


def test_what_a_script_may_not_write_passes(own_redis: OwnRedis) -> None:
    client = connect(own_redis.url)
    script = client.register_script("return redis.call('set', KEYS[1], 'x')")
    script(keys=["a"])
    own_redis.client.config_set("maxmemory", "1")
    with pytest.raises(redis_py.RedisError) as met:
        script(keys=["a"])
    assert is_transient(met.value)
    assert not is_transient(redis_py.ResponseError("wrong number of arguments"))
    client.close()


def test_a_cluster_is_refused_and_redis_away_is_not(own_redis: OwnRedis, cluster: OwnRedis) -> None:
    refuse_cluster(own_redis.client)
    with pytest.raises(ImproperlyConfigured, match="Use one Redis"):
        refuse_cluster(cluster.client)
    with connect("redis://127.0.0.1:1") as nowhere:
        refuse_cluster(nowhere)


@pytest.mark.process
def test_a_worker_does_not_start_on_a_cluster_and_says_what_to_use(cluster: OwnRedis, tmp_path: Path) -> None:
    with Supervisor(tmp_path, {**os.environ, "RIG_REDIS_URL": cluster.url}) as supervisor:
        worker = supervisor.start(
            "worker",
            [sys.executable, "-m", "dramatiq", "tests.core.broker.worker", "--processes", "1", "--threads", "1"],
        )
        until(lambda: worker.exit_code is not None, seconds=30)
        assert "Use one Redis" in worker.written()
