"""Tickets: "there is something to send on this rail". A hint that costs nothing when it is lost or doubled."""

from __future__ import annotations

from core.broker import queues
from messaging.domain.rails import Channel, Rail, actor_name, queue_name


def send_ticket(channel: Channel, rail: Rail) -> bool:
    """Wake a worker of the rail. Call it after the commit that made work due. Never raises, never blocks for long."""
    return queues.hint(queue_name(channel, rail), actor_name(channel, rail))
