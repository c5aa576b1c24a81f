"""Start, announce, serve, stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

from devtools.sandbox.connection import Connection
from devtools.sandbox.control import PREFIX, Control
from devtools.sandbox.messages import Answer, Request
from devtools.sandbox.options import Options
from devtools.sandbox.provider import Provider

_BACKLOG = 1024
_GRACE_S = 2.0  # for answers that are on their way when the signal comes


def run(options: Options) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. Prints one line once it listens."""
    try:
        asyncio.run(serve(options))
    except OSError as err:
        print(f"cannot listen on {options.host}:{options.port}: {err.strerror}", file=sys.stderr)
        return 1
    return 0


async def serve(options: Options) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    connections: set[Connection] = set()
    handle = _handler(Provider(options))
    server = await loop.create_server(
        lambda: Connection(handle, connections), options.host, options.port, backlog=_BACKLOG
    )
    port = server.sockets[0].getsockname()[1]
    print(f"sandbox listening on http://{options.host}:{port}", flush=True)
    await stop.wait()
    server.close()
    await _close(connections)


def _handler(provider: Provider) -> Callable[[Request, Callable[[Answer], None]], None]:
    control = Control(provider)

    def handle(request: Request, respond: Callable[[Answer], None]) -> None:
        if request.path.startswith(PREFIX):
            control.handle(request, respond)
        else:
            respond(provider.handle(request))

    return handle


async def _close(connections: set[Connection]) -> None:
    for connection in tuple(connections):
        connection.stop()
    deadline = asyncio.get_running_loop().time() + _GRACE_S
    while connections and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.005)
    for connection in tuple(connections):
        connection.abort()
    await asyncio.sleep(0)
