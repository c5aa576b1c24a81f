"""Which provider serves a channel. A channel without one does not exist: submit answers 400."""

from __future__ import annotations

import functools

from django.conf import settings
from django.utils.module_loading import import_string

from messaging.domain.rails import Channel
from messaging.providers.base import Adapter


@functools.cache
def adapters() -> dict[Channel, Adapter]:
    """One shared instance for each entry of the setting `MESSAGING_PROVIDERS` (channel → dotted path of the class).

    Cached for the life of the process; tests that change the setting call `adapters.cache_clear()`.
    """
    found: dict[Channel, Adapter] = {}
    for channel, path in settings.MESSAGING_PROVIDERS.items():
        adapter = import_string(path)()
        assert isinstance(adapter, Adapter), f"{path} is not an Adapter"
        assert adapter.channel == channel, f"{path} serves {adapter.channel}, not {channel}"
        found[Channel(channel)] = adapter
    return found


def adapter_for(channel: Channel) -> Adapter | None:
    return adapters().get(channel)
