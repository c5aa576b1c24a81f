"""A consumer that blocks until it is woken, in place of dramatiq's, which polls.

    gate closed  → gives back what nobody has begun, waits until it opens
    full         → waits until a job is done
    else         → fetches; finds nothing → blocks on the queue's wakes → fetches

A wake says "look", to one consumer. It is never swallowed: a gated or full consumer takes none, one whose gate closed while it
was blocked puts it back, and one that could take no more passes one on. Should a wake get lost with its process, the
look that each idle consumer takes every `LOOK_SECONDS` finds the message. The same looks are the heartbeat, without which others
would take this worker's messages for those of a dead one.

Idle, a consumer costs five commands in four seconds, those within dramatiq's script counted: two BLPOP, and EVALSHA, ZADD and
LPOP for the look.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import PriorityQueue
from typing import Any, cast

import redis
from dramatiq import Message, MessageProxy
from dramatiq.brokers.redis import _RedisConsumer
from dramatiq.common import iter_queue
from dramatiq.errors import ConnectionClosed, DecodeError
from dramatiq.worker import ConsumerThread

from core.broker.transport import Transport
from core.db.faults import AWAY, is_transient

log = logging.getLogger(__name__)

#: Seconds for which a consumer blocks for a wake: how late it sees, at the worst, that its gate is closed or its process stops.
BLOCK_SECONDS = 2.0
#: Seconds between two looks of an idle consumer that nothing woke, and between two heartbeats of a gated or full one.
LOOK_SECONDS = 4.0
#: Seconds for which a gated or full consumer waits for its gate or a job before it looks around.
_PAUSE_SECONDS = 0.5
#: Seconds for an answer of Redis; above `BLOCK_SECONDS`.
_ANSWER_SECONDS = 5.0


@contextmanager
def _in_dramatiq_s_words() -> Iterator[None]:
    """After ConnectionClosed, dramatiq makes a new consumer, or acknowledges again; anything else it takes for a bug."""
    try:
        yield
    except redis.RedisError as error:
        if is_transient(error):
            raise ConnectionClosed(error) from None  # type: ignore[no-untyped-call]
        raise


class WakingConsumer(_RedisConsumer):
    """Made by its `ConsumerThread`, whose work queue it clears when the gate closes. `timeout`, the longest pause between two
    polls, means nothing here. Raises dramatiq's ConnectionClosed, after which the thread makes another one."""

    def __init__(self, broker: Transport, queue_name: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)  # type: ignore[no-untyped-call]
        self.broker: Transport = broker
        self.message_cache: list[bytes | None] = []
        self.queued_message_ids: set[str] = set()
        thread = threading.current_thread()
        self._work_queue: PriorityQueue[Any] | None = thread.work_queue if isinstance(thread, ConsumerThread) else None
        self._gate = broker.gate(queue_name)
        self._in_hand = broker.in_hand(queue_name)
        self._client = broker.consuming_client(_ANSWER_SECONDS)
        # Not longer than a quarter of the time after which this worker would count as dead.
        self._rhythm = min(LOOK_SECONDS, broker.heartbeat_timeout / 4000)
        self._room = threading.Event()
        self._new = True
        self._more = True  # the queue may hold something, wake or not: always so while it is full
        self._due = 0.0  # monotonic: the next look or heartbeat

    def __next__(self) -> MessageProxy | None:
        with _in_dramatiq_s_words():
            if self._new:
                self._recover()
                self._new = False
            if not self._gate.is_open():
                self._stand_by()
            elif self.message_cache or self._fill():
                return self._first()
        return None

    def ack(self, message: MessageProxy) -> None:
        self._finish(self.broker.do_ack, message)

    def nack(self, message: MessageProxy) -> None:
        self._finish(self.broker.do_nack, message)

    def requeue(self, messages: Iterable[Message[Any] | MessageProxy]) -> None:
        """Give messages back that nobody has begun: any process can take them at once."""
        given = {message.options["redis_message_id"]: message.message_id for message in messages}
        if not given:
            return
        self._in_hand.difference_update(given)  # first: if Redis is away, the next consumer finds them (`_recover`)
        self.queued_message_ids.difference_update(given.values())
        with _in_dramatiq_s_words():
            self.broker.do_requeue(self.queue_name, *given)
            self.broker.wake(self.queue_name)

    def close(self) -> None:
        self._client.close()
        self._client.connection_pool.disconnect()

    # ------------------------------------------------------------------------------------------------ fetching

    def _fill(self) -> bool:
        """Whether there is something in the cache now. Blocks for a while if there is not."""
        room = self.prefetch - self.outstanding_message_count
        if room <= 0:
            self._wait_for_room()
            return False
        if (self._more or time.monotonic() >= self._due) and self._fetch(room):
            return True
        if not self._wait_for_wake():
            return False
        if self._gate.is_open():
            return self._fetch(room)
        self.broker.wake(self.queue_name, self._client)
        return False

    def _fetch(self, room: int) -> bool:
        self.message_cache = self.broker.fetch(self.queue_name, room, self._client)
        self._more = len(self.message_cache) == room  # what comes after an emptied queue leaves a wake
        self._due = time.monotonic() + self._rhythm
        if len(self.message_cache) == room:
            self.broker.wake(self.queue_name, self._client)
        return bool(self.message_cache)

    def _wait_for_wake(self) -> bool:
        try:
            key = self.broker.key(f"{self.queue_name}.wake")
            return self._client.blpop([key], timeout=min(BLOCK_SECONDS, self._rhythm)) is not None
        except AWAY:
            return True  # a wake may have been on its way; the fetch that follows tells whether Redis is there

    def _wait_for_room(self) -> None:
        self._beat()
        self._room.clear()
        if self.outstanding_message_count >= self.prefetch:
            self._room.wait(min(_PAUSE_SECONDS, self._rhythm))

    def _beat(self) -> None:
        if time.monotonic() >= self._due:
            self.broker.fetch(self.queue_name, 0, self._client)
            self._due = time.monotonic() + self._rhythm

    def _first(self) -> MessageProxy | None:
        """The first message of the cache that can be read."""
        while self.message_cache:
            message = self._decode(self.message_cache.pop(0))
            if message is not None:
                self.queued_message_ids.add(message.message_id)
                self._in_hand.add(message.options["redis_message_id"])
                return MessageProxy(message)
        return None

    # ------------------------------------------------------------------------------------------------ giving back

    def _stand_by(self) -> None:
        self._give_back()
        self._beat()
        self._more = True
        self._gate.wait_open(min(_PAUSE_SECONDS, self._rhythm))

    def _give_back(self) -> None:
        """What was fetched and not begun: in the cache, and in the work queue that all consumers of the process share."""
        self.requeue(self._from_work_queue())
        self.requeue([message for message in map(self._decode, self.message_cache) if message is not None])
        self.message_cache = []

    def _from_work_queue(self) -> Iterator[MessageProxy]:
        if self._work_queue is None:
            return
        for item in list(iter_queue(self._work_queue)):  # type: ignore[no-untyped-call]
            if item.message.queue_name == self.queue_name:
                yield item.message
            else:
                self._work_queue.put(item)
            self._work_queue.task_done()

    # ------------------------------------------------------------------------------------------------ what went wrong

    def _recover(self) -> None:
        """Give back what this worker holds in Redis and nobody in it knows of: the answer to a fetch was lost, or the consumer
        before this one ended with a full cache."""
        if lost := self._held() - self._in_hand:
            log.warning("messages_recovered", extra={"queue": self.queue_name, "count": len(lost)})
            self.broker.do_requeue(self.queue_name, *lost)
            self.broker.wake(self.queue_name, self._client)

    def _decode(self, data: bytes | None) -> Message[Any] | None:
        """None: it cannot be read, and is put aside, so that the others go on."""
        try:
            message: Message[Any] = Message.decode(data)  # type: ignore[arg-type]
            ids = (message.message_id, message.actor_name, message.options["redis_message_id"])
        except (DecodeError, KeyError, TypeError) as error:
            why = type(error).__name__
        else:
            if message.queue_name == self.queue_name and all(isinstance(found, str) for found in ids):
                return message
            why = "foreign"  # dramatiq's threads would die of it
        log.error("message_unreadable", extra={"queue": self.queue_name, "error": why})
        self._put_aside(data)
        return None

    def _put_aside(self, data: bytes | None) -> None:
        """Make a dead letter of it (if it has gone, forget it). Its id stands in Redis alone."""
        held = list(self._held())
        stored = self._client.hmget(self.broker.key(f"{self.queue_name}.msgs"), held) if held else []
        for pk, found in zip(held, stored, strict=True):
            if found == data:
                self.broker.do_nack(self.queue_name, pk)

    def _held(self) -> set[str]:
        """The ids of the queue's messages that are this worker's, as Redis has it."""
        key = self.broker.key(f"__acks__.{self.broker.broker_id}.{self.queue_name}")
        return {str(pk, "ascii") for pk in cast("set[bytes]", self._client.smembers(key))}

    def _finish(self, do: Callable[..., Any], message: MessageProxy) -> None:
        pk = message.options["redis_message_id"]
        try:
            with _in_dramatiq_s_words():
                do(self.queue_name, pk)
            self._in_hand.discard(pk)
        finally:
            self.queued_message_ids.discard(message.message_id)
            self._room.set()
