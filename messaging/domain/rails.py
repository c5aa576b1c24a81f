"""Channels, categories, rails: the vocabulary that every other part stands on."""

from __future__ import annotations

from enum import StrEnum


class Channel(StrEnum):
    EMAIL = "email"
    SMS = "sms"
    PUSH = "push"
    WEBHOOK = "webhook"


class Category(StrEnum):
    """What the sender says a send is. It decides the rail; nobody chooses a rail."""

    TRANSACTIONAL = "transactional"
    PRODUCT = "product"
    MARKETING = "marketing"


class Rail(StrEnum):
    TRANSACTIONAL = "transactional"
    MARKETING = "marketing"


#: Total: every category has exactly one rail. The database holds the same rule as a CHECK (`models.send`).
RAIL_OF: dict[Category, Rail] = {
    Category.TRANSACTIONAL: Rail.TRANSACTIONAL,
    Category.PRODUCT: Rail.TRANSACTIONAL,
    Category.MARKETING: Rail.MARKETING,
}

#: Within a rail the lower number goes first, across all tenants.
PRIORITY_OF: dict[Category, int] = {Category.TRANSACTIONAL: 0, Category.PRODUCT: 1, Category.MARKETING: 2}

#: The priorities that a rail carries, first served first.
PRIORITIES: dict[Rail, tuple[int, ...]] = {
    rail: tuple(sorted(PRIORITY_OF[c] for c in Category if RAIL_OF[c] is rail)) for rail in Rail
}


def queue_name(channel: Channel, rail: Rail) -> str:
    """The broker queue of a rail, e.g. `notif.email.transactional`."""
    return f"notif.{channel}.{rail}"


def actor_name(channel: Channel, rail: Rail) -> str:
    """The actor that serves a rail's queue."""
    return f"dispatch_{channel}_{rail}"
