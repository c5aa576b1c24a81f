"""The keeper: owns the two servers of a data folder for as long as somebody is connected to it.

Protocol, over a unix stream socket: the client writes one JSON object a line, the keeper answers each with one.

    {"do": "use", "servers": ["postgres", "redis"]}   starts what is not running → {"urls": {"postgres": …, "redis": …}}
    {"do": "status"}                                  → {"keeper": pid, "servers": {name: {"pid": … or null, "url": …}}}
    {"do": "start" | "stop" | "kill" | "restart", "server": name}   → as status
    anything that fails                               → {"error": text for the person at the terminal}

A server that a command has put down stays down until a command starts it; one that died is started by the next `use`.
One thread and no timer but the linger: while a server starts, other clients wait their turn.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from config.embedded.errors import ADVICE, EmbeddedServiceError
from config.embedded.locks import lock
from config.embedded.options import Options
from config.embedded.paths import Paths, sockets_folder
from config.embedded.postgres_server import PostgresServer
from config.embedded.redis_server import RedisServer
from config.embedded.server import Server

log = logging.getLogger("keeper")

#: A predecessor that has just lost its last client needs this long to stop its servers, at worst.
_PREDECESSOR_SECONDS = 30.0
_LINE_BYTES = 4_096
#: A log that is larger when a keeper starts begins anew.
_LOG_BYTES = 2_000_000


class Keeper:
    def __init__(self, options: Options, paths: Paths, first: socket.socket) -> None:
        self._options = options
        self._servers: Mapping[str, Server] = {
            server.name: server for server in (PostgresServer(options, paths), RedisServer(options, paths))
        }
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(paths.control))
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._clients = {first}
        self._selector.register(first, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the last client is gone and nobody came during the linger, or until SIGTERM."""
        while events := self._selector.select(None if self._clients else self._options.linger):
            for key, _ in events:
                if key.fileobj is self._listener:
                    client, _ = self._listener.accept()
                    self._clients.add(client)
                    self._selector.register(client, selectors.EVENT_READ)
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._hear(key.fileobj)

    def stop(self) -> None:
        # First the door: who comes now finds no keeper, starts another, and that one waits for the lock of this one.
        self._listener.close()
        for server in self._servers.values():
            server.stop()

    def delete_data(self) -> None:
        for server in self._servers.values():
            server.delete_data()

    def _hear(self, client: socket.socket) -> None:
        try:
            request = client.recv(_LINE_BYTES)
            if request:
                # A request is one short write of ours on a local stream, so it arrives whole.
                client.sendall(json.dumps(self._answer(request)).encode() + b"\n")
                return
        except OSError as error:  # it was killed with our answer unread
            log.info("client lost: %s", error.strerror)
        self._selector.unregister(client)
        self._clients.discard(client)
        client.close()

    def _answer(self, line: bytes) -> Mapping[str, Any]:
        log.info("%s", line.decode(errors="replace"))
        try:
            request = json.loads(line)
            if request["do"] == "use":
                servers = [self._servers[name] for name in request["servers"]]
                for server in servers:
                    server.ensure()
                return {"urls": {server.name: server.url for server in servers}}
            if request["do"] != "status":
                self._command(request["do"], self._servers[request["server"]])
            return self._status()
        except EmbeddedServiceError as error:
            log.error("%s", error)  # the text is the message, the trace is of no use to anybody
            return {"error": str(error)}
        except OSError as error:  # a full disk, a container in which root may not become another user
            log.exception("failed")
            return {"error": f"{error}. {ADVICE}"}
        except (KeyError, ValueError):
            return {"error": f"The keeper does not know {line.decode(errors='replace')}."}

    def _command(self, do: str, server: Server) -> None:
        if do not in ("start", "stop", "kill", "restart"):
            raise ValueError(do)
        if do == "kill":
            server.kill()
        elif do != "start":
            server.stop()
        server.held_down = do in ("kill", "stop")
        if not server.held_down:
            server.start()

    def _status(self) -> Mapping[str, Any]:
        return {
            "keeper": os.getpid(),
            "servers": {
                name: {"pid": server.process.pid if server.running and server.process else None, "url": server.url}
                for name, server in self._servers.items()
            },
        }


def run(options: Options, first: socket.socket) -> None:
    paths = Paths.of(options.folder)
    with lock(paths.keeper_lock, seconds=_PREDECESSOR_SECONDS):
        for path in options.folder.glob("*.log"):
            if path.stat().st_size > _LOG_BYTES:
                os.truncate(path, 0)
        sockets_folder(paths.sockets)
        paths.control.unlink(missing_ok=True)  # of a keeper that was killed
        keeper = Keeper(options, paths, first)
        try:
            signal.signal(signal.SIGTERM, _leave)
            keeper.serve()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            keeper.stop()
            shutil.rmtree(paths.sockets)
            if options.throwaway:
                _throw_away(options.folder, keeper)


def _throw_away(folder: Path, keeper: Keeper) -> None:
    """Delete what is ours in the folder, by name: should it be somebody's home by mistake, the rest of it stays."""
    keeper.delete_data()
    for path in (*folder.glob("*.lock"), *folder.glob("*.log")):
        path.unlink()
    folder.rmdir()


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit


def main() -> None:
    """`python -m config.embedded.keeper FOLDER FD`, with the EMBEDDED_ variables; `config.embedded.client` does."""
    folder, descriptor = sys.argv[1:]
    if os.fork():
        os._exit(0)
    os.setsid()  # Ctrl-C in the terminal is for the clients
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        run(Options.read(Path(folder)), socket.socket(fileno=int(descriptor)))
    except TimeoutError:
        sys.exit(f"Another keeper of {folder} has not ended after {_PREDECESSOR_SECONDS:.0f} s. {ADVICE}")


if __name__ == "__main__":
    main()
