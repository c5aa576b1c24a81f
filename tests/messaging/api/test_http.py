"""What only a real server shows: bodies without a length, two requests at once, servers that are away, and time.

gunicorn as in the Procfile, with production settings, on the test database.
"""

from __future__ import annotations

import http.client
import json
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from core.management.commands.generate_keys import fresh_lines
from devtools.processes import CHECKOUT, Process, Supervisor
from devtools.stack import url_of
from messaging.api.parsers import MAX_BODY
from messaging.models import Send
from tests.messaging.tenant_rig import BODY, Speaker, ensure_bucket, make_tenant

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]
#: What a submit may take with Redis away, in seconds.
REDIS_AWAY_LIMIT = 0.3


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes
    seconds: float

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])


@dataclass(frozen=True)
class Web:
    port: int
    key: str
    process: Process

    def post(self, body: Any = BODY, *, chunked: bool = False, **headers: str) -> Answer:
        data = body if isinstance(body, bytes) or chunked else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **named}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as link:
            start = time.perf_counter()
            link.request("POST", "/v1/messaging/sends", data, given, encode_chunked=chunked)
            response = link.getresponse()
            raw = response.read()
            seconds = time.perf_counter() - start
        return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, raw, seconds)

    def at_once(self, count: int, body: Any = BODY, **headers: str) -> list[Answer]:
        barrier = threading.Barrier(count)

        def one(_: int) -> Answer:
            barrier.wait(10)
            return self.post(body, **headers)

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(one, range(count)))


@pytest.fixture
def key() -> str:
    ensure_bucket()
    return Speaker.of(make_tenant()).key


@contextmanager
def serving(folder: Path, key: str, *flags: str, **environment: str) -> Iterator[Web]:
    secrets = dict(line.split("=", 1) for line in fresh_lines())
    env = {
        **secrets,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DEBUG": "0",
        "ALLOWED_HOSTS": "127.0.0.1",
        "DATABASE_URL": url_of(connection.settings_dict),
        "REDIS_URL": settings.REDIS_URL,
        **environment,
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = next(line for line in (CHECKOUT / "Procfile").read_text().splitlines() if line.startswith("web: gunicorn "))
    command = [sys.executable, "-m", *shlex.split(line.removeprefix("web: ")), *flags]
    with Supervisor(folder) as supervisor:
        # The worker listens before it has loaded the application; the first request waits for that.
        web = supervisor.start("web", [*command, "--bind", f"127.0.0.1:{port}"], env=env, ready="Booting worker")
        web.wait_ready()
        client = Web(port, key, web)
        warm_up = client.post(b"{}", Authorization="Basic x")
        assert warm_up.status == 401, web.tail()
        yield client


def test_over_http(tmp_path: Path, key: str) -> None:
    """One server, many questions: a start costs more than all of them."""
    with serving(tmp_path, key) as web:
        _bodies_without_a_length(web)
        _two_at_once(web)
        _a_lost_connection_to_the_database(web)


def _bodies_without_a_length(web: Web) -> None:
    data = json.dumps(BODY).encode()
    pieces = [data[i : i + 10] for i in range(0, len(data), 10)]
    assert web.post(iter(pieces), chunked=True).status == 202
    assert Send.objects.count() == 1

    empty = web.post(iter([]), chunked=True)
    assert (empty.status, empty.code) == (400, "invalid_json")
    wrong = web.post(iter(pieces), chunked=True, Content_Type="text/plain")
    assert (wrong.status, wrong.code) == (415, "unsupported_media_type")

    at_limit = data[:-1] + b" " * (MAX_BODY - len(data)) + b"}"
    assert web.post(iter([at_limit]), chunked=True).status == 202
    above = web.post(iter([at_limit, b" "]), chunked=True)
    assert (above.status, above.code) == (413, "body_too_large")

    # One that never ends is answered all the same: nobody reads further than the limit.
    with closing(socket.create_connection(("127.0.0.1", web.port), timeout=20)) as link:
        head = f"POST /v1/messaging/sends HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {web.key}\r\n"
        link.sendall(head.encode() + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        link.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        for _ in range(MAX_BODY // 0x10000):
            link.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert link.recv(4096).startswith(b"HTTP/1.1 413")

    # Announced as too large: refused before it is sent.
    with closing(socket.create_connection(("127.0.0.1", web.port), timeout=20)) as link:
        link.sendall(head.encode() + b"Content-Type: application/json\r\nContent-Length: 2000000000\r\n\r\n{")
        assert link.recv(4096).startswith(b"HTTP/1.1 413")


def _two_at_once(web: Web) -> None:
    for n in range(5):
        before = Send.objects.count()
        answers = web.at_once(4, Idempotency_Key=f"order-{n}")
        assert {answer.status for answer in answers} == {202}
        assert len({answer.raw for answer in answers}) == 1
        assert sum(answer.headers.get("idempotent-replayed") == "true" for answer in answers) == 3
        assert Send.objects.count() == before + 1
    other = web.post(BODY | {"text": "other"}, Idempotency_Key="order-0")
    assert (other.status, other.code) == (409, "idempotency_key_reused")


def _a_lost_connection_to_the_database(web: Web) -> None:
    before = Send.objects.count()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    answers = [web.post() for _ in range(20)]  # as many as there are threads with a connection of their own, and more
    failed = [answer for answer in answers if answer.status != 202]
    assert all((a.status, a.code, a.headers["retry-after"]) == (503, "database_unavailable", "5") for a in failed)
    assert answers[-1].status == 202
    assert Send.objects.count() == before + len(answers) - len(failed)


def test_the_database_away_is_a_503(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nowhere = f"postgresql://app@127.0.0.1:{free.getsockname()[1]}/app"
    with serving(tmp_path, key, DATABASE_URL=nowhere) as web:
        answer = web.post()
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "database_unavailable", "5")
    assert "127.0.0.1" not in answer.raw.decode()


@contextmanager
def redis_refused() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def redis_silent() -> Iterator[str]:
    """Accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@contextmanager
def redis_unroutable() -> Iterator[str]:
    """Packets go nowhere (a reserved address; where there is no route at all, it is refused at once)."""
    yield "redis://192.0.2.1:6379/0"


@pytest.mark.parametrize("away", [redis_refused, redis_silent, redis_unroutable])
def test_redis_away_is_still_a_202_in_time(tmp_path: Path, key: str, away: Any) -> None:
    with away() as url, serving(tmp_path, key, REDIS_URL=url) as web:
        web.post(BODY | {"to": "not an address"})  # the worker's connection to the database and its imports
        answers = []
        for _ in range(6):
            answers.append(web.post())
            time.sleep(0.25)  # more than a second in all: the pause after a failure ends, and the next one tries again
        burst = web.at_once(8)
    assert {answer.status for answer in answers + burst} == {202}
    assert Send.objects.filter(status="queued").count() == 14
    assert max(answer.seconds for answer in answers + burst) < REDIS_AWAY_LIMIT
