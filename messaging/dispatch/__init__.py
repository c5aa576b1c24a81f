"""From a ticket to a provider request and back: the one path that every send of every rail takes.

`run_ticket` is all that others need. Inside: `leader` (one per provider, rail and process), `scheduler` (candidates →
governor), `forming` (claim), `preparing` (render, bytes), `recording` (what came back), `turn` (their order).
"""

from messaging.dispatch.turn import run_ticket

__all__ = ["run_ticket"]
