"""The queue port: an enqueue never fails its caller, and never keeps it waiting, however Redis misbehaves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import dramatiq
import pytest
from redis import Redis

from core.broker import queues
from core.broker.broker import RailBroker


@pytest.fixture(autouse=True)
def _closed_breaker() -> Iterator[None]:
    queues.breaker.reset()
    yield
    queues.breaker.reset()


@pytest.fixture
def use_redis_at() -> Iterator[object]:
    before = dramatiq.get_broker()

    def use(port: int) -> None:
        broker = RailBroker(url=f"redis://127.0.0.1:{port}/1")
        dramatiq.set_broker(broker)
        broker.declare_queue("q")

    yield use
    dramatiq.set_broker(before)


class _Slow:
    """Accepts, and answers each command after `seconds`; never, with None."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._end = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

    def _serve(self) -> None:
        clients = []
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                break
            clients.append(client)
            threading.Thread(target=self._talk, args=(client,), daemon=True).start()
        for client in clients:
            client.close()

    def _talk(self, client: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                for _ in range(data.count(b"*")):
                    if self._end.wait(self._seconds):
                        return
                    client.sendall(b"%1\r\n+proto\r\n:3\r\n" if b"HELLO" in data else b"+OK\r\n")
        except OSError:
            return


@pytest.mark.parametrize("seconds", [0.08, None])
def test_an_enqueue_is_over_within_a_quarter_of_a_second(use_redis_at: object, seconds: float | None) -> None:
    slow = _Slow(seconds)
    try:
        use_redis_at(slow.port)  # type: ignore[operator]
        started = time.monotonic()
        queued = queues.enqueue("q", "a")
        took = time.monotonic() - started
    finally:
        slow.close()
    assert queued is False
    assert took < 0.25


def test_a_refused_connection_is_told_at_once_and_not_tried_again_for_a_while(use_redis_at: object) -> None:
    use_redis_at(1)  # type: ignore[operator]
    assert queues.enqueue("q", "a") is False
    assert queues.breaker.open()
    started = time.monotonic()
    assert [queues.enqueue("q", "a") for _ in range(100)] == [False] * 100
    assert time.monotonic() - started < 0.1


def test_depth_counts_what_is_not_yet_fetched(redis: Redis) -> None:
    queue = "notif.email.transactional"
    assert queues.depth(queue) == 0
    assert queues.enqueue(queue, "dispatch_email_transactional")
    assert queues.depth(queue) == 1


def test_hints_beyond_a_few_hundred_are_left_out_and_work_never_is(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, actor = "notif.email.transactional", "dispatch_email_transactional"
    monkeypatch.setattr(queues, "MAX_HINTS", 5)
    assert all(queues.hint(queue, actor) for _ in range(20))
    assert queues.depth(queue) == redis.hlen(f"dramatiq:{queue}.msgs") == 5
    assert queues.enqueue(queue, actor, 1)
    assert queues.depth(queue) == 6
    redis.lpop(f"dramatiq:{queue}", 2)
    queues.hint(queue, actor)
    assert queues.depth(queue) == 5
