"""PostgreSQL and Redis for development, tests and the demo, started on demand and stopped when nobody uses them.

    process ──unix socket──▶ keeper (one per data folder, own session) ──▶ postgres
    process ──unix socket──▶                                           ──▶ redis-server

A process asks the keeper for the addresses and keeps the connection open for its life; the kernel closes it whichever
way the process ends. Once no connection has been open for two seconds, the keeper stops both servers and itself. When
the keeper is killed, the kernel ends the servers (Linux), or the next keeper does (elsewhere).

Nothing of this is for production: there, `DATABASE_URL` and `REDIS_URL` are set and this package is not imported.
"""

from config.embedded.client import command, ensure_services
from config.embedded.errors import EmbeddedServiceError

__all__ = ["EmbeddedServiceError", "command", "ensure_services"]
