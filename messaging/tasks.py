"""The actors: one for each rail of each channel that has a provider. All they do is serve a ticket."""

from __future__ import annotations

import dramatiq

from messaging.dispatch import run_ticket
from messaging.domain.rails import Channel, Rail, actor_name, queue_name
from messaging.providers.registry import adapters


def _declare(channel: Channel, rail: Rail) -> None:
    def serve() -> None:
        run_ticket(channel, rail)

    dramatiq.actor(actor_name=actor_name(channel, rail), queue_name=queue_name(channel, rail))(serve)


for _channel in adapters():
    for _rail in Rail:
        _declare(_channel, _rail)
