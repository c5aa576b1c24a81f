"""gunicorn's threads, which no client holds for long: `gunicorn --worker-class config.gunicorn_worker.Worker`.

gunicorn itself waits for ever for a request's next byte, in one of its few threads, and sees off each connection that
ends in the one thread that accepts all others.
"""

from __future__ import annotations

from typing import Any

from gunicorn.workers.gthread import ThreadWorker

from config.pace import BODY, HEAD, PacedSocket, paced, see_off

#: Seconds for which a connection that is closed with something unread is read on.
LINGER_SECONDS = 2.0


class Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn is not typed
    head, body = HEAD, BODY

    def enqueue_req(self, conn: Any) -> None:
        if not isinstance(conn.sock, PacedSocket):
            conn.sock = paced(conn.sock)
        super().enqueue_req(conn)

    def handle(self, conn: Any) -> Any:
        conn.sock.whole = False
        conn.sock.keep(self.head)
        kept = super().handle(conn)
        if kept is False:
            see_off(conn.sock, LINGER_SECONDS)
        return kept

    def handle_request(self, req: Any, conn: Any) -> Any:
        conn.sock.keep(self.body)
        conn.sock.settimeout(self.body.silence)  # also of a client that does not take its answer
        return super().handle_request(req, conn)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: Exception) -> None:
        super().handle_error(req, client, addr, _unquoted(exc))


def _unquoted(error: Exception) -> Exception:
    """An error of the same kind that says nothing: gunicorn's own ones quote the request, key and all, to its log and in
    its answer."""
    kind = type(error)
    neutral: type[Exception] = type(
        kind.__name__, (kind,), {"__init__": lambda self: None, "__str__": lambda self: kind.__name__}
    )
    return neutral()
