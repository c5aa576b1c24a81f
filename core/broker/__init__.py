"""The broker: Dramatiq on Redis, with wakes instead of polling. `RailBroker` is what `DRAMATIQ_BROKER` names."""

from core.broker.broker import RailBroker

__all__ = ["RailBroker"]
