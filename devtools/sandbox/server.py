"""Start, announce, serve, stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

from devtools.sandbox.connection import Connection, Handler
from devtools.sandbox.control import PREFIX, Control
from devtools.sandbox.messages import Answer, Request
from devtools.sandbox.options import Options
from devtools.sandbox.provider import Provider

_BACKLOG = 1024
_GRACE_S = 2.0  # for answers that are on their way when the signal comes
_LEAVES_S = 0.05  # for an answer to leave; between two tries to listen again


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
    door = Door(options.host, options.port, connections)
    await door.open(_handler(Provider(options), door))
    print(f"sandbox listening on http://{options.host}:{door.port}", flush=True)
    await stop.wait()
    door.close()
    await _close(connections)


class Door:
    """Where requests come in. It can be shut for a while, as by a provider that is down: nothing listens, open connections
    are reset, and what is known stays known."""

    def __init__(self, host: str, port: int, connections: set[Connection]) -> None:
        self._host, self.port, self._connections = host, port, connections
        self._away: asyncio.Task[None] | None = None

    async def open(self, handle: Handler) -> None:
        """Raises OSError if the port is taken."""
        self._handle = handle
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(handle, self._connections), self._host, self.port, backlog=_BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def shut(self, seconds: float) -> None:
        """For so long, from a moment on in which the answer to whoever asks for it has left."""
        if self._away is None or self._away.done():
            self._away = asyncio.get_running_loop().create_task(self._shut(seconds))

    def close(self) -> None:
        if self._away is not None:
            self._away.cancel()
        self._server.close()

    async def _shut(self, seconds: float) -> None:
        await asyncio.sleep(_LEAVES_S)
        self._server.close()
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.sleep(seconds)
        while True:
            try:
                await self.open(self._handle)
            except OSError:  # somebody's outgoing connection sits on the port for a moment
                await asyncio.sleep(_LEAVES_S)
            else:
                return


def _handler(provider: Provider, door: Door) -> Handler:
    control = Control(provider, door.shut)

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
