"""The one way in which an adapter talks HTTP: one attempt, one deadline, only to the endpoints it named.

Built on the transport of `requests` (connections, pool, TLS) without its `Session`: a session would read netrc and
proxy variables, keep cookies, and look at redirects. What came back is a `Reply`, or a `NoReply` that says whether
a byte of the request had left: that, and never the class of an exception, decides between "not sent" and "unknown".
"""

from __future__ import annotations

import functools
import json
import os
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import requests
from requests.adapters import HTTPAdapter as RequestsTransport
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3.exceptions import HTTPError

from messaging.providers.base import Adapter
from messaging.providers.http.wire import Exchange, Resolver, TimedPool, TimedTLSPool, current_exchange

#: Connections kept for reuse. A worker process has up to 16 threads; more requests at once only dial anew.
POOL_SIZE = 16

#: Bytes of an answer that are read. The answer to a full batch is some 10 kB; what is larger is not from the provider.
MAX_ANSWER_BYTES = 4 * 1024 * 1024

_CHUNK_BYTES = 64 * 1024

#: What the network and the parsers underneath raise (`requests.RequestException` is an OSError). The rest is a bug.
_FAILURES = (OSError, HTTPException, HTTPError, ValueError)


class ForbiddenEndpointError(Exception):
    """A bug in an adapter: it called what is not in its `endpoints`. Nothing was sent."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A status line and headers arrived. `complete` is False if the body was cut, timed out or too large."""

    status: int
    headers: Mapping[str, str]  # case-insensitive
    body: bytes
    complete: bool

    def json(self) -> Any:
        """The body as JSON. Raises ValueError for whatever is not whole, UTF-8 and JSON."""
        if not self.complete:
            raise ValueError("the body is cut")
        try:
            return json.loads(self.body.decode("utf-8"))
        except RecursionError as err:
            raise ValueError("the body is nested too deeply") from err


@dataclass(frozen=True, slots=True)
class NoReply:
    """No status line came. If `wrote` is False, no byte of the request was handed to the network."""

    wrote: bool
    code: str  # stage and manner: dns_failed, connect_timeout, tls_failed, send_failed, answer_timeout, …
    detail: str = ""  # the class of the underlying error, for people


class HttpClient:
    """Talks to one provider. Shared by threads; after a fork the child opens connections of its own.

    `endpoints` are (method, path) pairs; a `*` in a path stands for one segment of letters, digits, `-` and `_`.
    """

    def __init__(self, base_url: str, endpoints: Iterable[tuple[str, str]], *, tls: ssl.SSLContext | None = None):
        self._base_url = base_url.rstrip("/")
        self._allowed = [(method, _path_pattern(path)) for method, path in endpoints]
        self._tls = tls
        self._by_pid: dict[int, _Connections] = {}

    def request(
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes | None = None, timeout: float
    ) -> Reply | NoReply:
        """One request, answered or given up within `timeout` seconds in all. Raises ForbiddenEndpointError.

        Redirects are returned, not followed. A connection that turns out dead is not dialled again.
        """
        if not any(method == allowed and pattern.fullmatch(path) for allowed, pattern in self._allowed):
            raise ForbiddenEndpointError(f"{method} {path} is not among the endpoints of this adapter")
        if timeout <= 0:
            return NoReply(wrote=False, code="no_time_left")
        prepared = requests.Request(
            method,
            self._base_url + path,
            # "identity": the bound on the body then bounds memory too.
            headers={"User-Agent": _user_agent(), "Accept-Encoding": "identity", **headers},
            data=body,
        ).prepare()
        connections = self._connections()
        exchange = Exchange(timeout, connections.resolver)
        token = current_exchange.set(exchange)
        try:
            # No proxies: `{}` is what `requests` was told, it asks the environment only through a Session.
            with connections.send(prepared, stream=True, timeout=timeout, verify=True, proxies={}) as response:
                reply = _read(response)
        except _FAILURES as err:
            manner = "timeout" if exchange.expired() else "failed"
            return NoReply(exchange.wrote, f"{exchange.stage}_{manner}", type(_root(err)).__name__)
        finally:
            current_exchange.reset(token)
        # An answer to a request that was not sent belongs to nobody, e.g. the farewell of a connection that sat idle.
        return reply if exchange.wrote else NoReply(wrote=False, code="send_failed", detail="UnaskedAnswer")

    def close(self) -> None:
        """Close the kept connections of this process. The client remains usable."""
        connections = self._by_pid.pop(os.getpid(), None)
        if connections is not None:
            connections.close()

    def _connections(self) -> _Connections:
        # By process, and without a lock: one that another thread held at the fork would stay locked in the child.
        pid = os.getpid()
        connections = self._by_pid.get(pid)
        if connections is None:
            connections = self._by_pid.setdefault(pid, _Connections(self._context()))
            for other in [known for known in self._by_pid if known != pid]:
                # The parent's connections: letting go closes only this process's copies of them.
                self._by_pid.pop(other, None)
        return connections

    def _context(self) -> ssl.SSLContext | None:
        if self._tls is None and self._base_url.startswith("https:"):
            self._tls = ssl.create_default_context(cafile=DEFAULT_CA_BUNDLE_PATH)
        return self._tls


class HttpAdapter(Adapter):
    """An adapter that speaks HTTP. Subclasses call `self.http` and turn what comes back into an `Answer`."""

    def __init__(self, base_url: str) -> None:
        self.http = HttpClient(base_url, self.endpoints)


class _Connections(RequestsTransport):
    """The connection pool of one process."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self.resolver = Resolver()
        super().__init__(pool_connections=1, pool_maxsize=POOL_SIZE, max_retries=0)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **kwargs: Any) -> None:
        super().init_poolmanager(connections, maxsize, block, ssl_context=self._tls, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": TimedPool, "https": TimedTLSPool}

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the context has its certificates. `requests` would load them anew for every connection."""


def _read(response: requests.Response) -> Reply:
    """The body, up to the bound. Leaving `response` returns a connection that is read to its end to the pool."""
    status, headers = response.status_code, response.headers
    if status < 200 or status in (204, 304):
        # No body by definition; but an interim answer is followed by the real one, and a server may get these wrong.
        # What follows must not be taken for the answer to the next request.
        response.raw.close()
        return Reply(status, headers, b"", complete=True)
    body = bytearray()
    complete = False
    try:
        while chunk := response.raw.read(_CHUNK_BYTES, decode_content=False):
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                break
        else:
            complete = True
    except _FAILURES:
        pass  # the status line stands; what it proves without a body is the adapter's to say
    if not complete:
        response.raw.close()
    return Reply(status, headers, bytes(body[:MAX_ANSWER_BYTES]), complete)


def _path_pattern(path: str) -> re.Pattern[str]:
    return re.compile("/".join("[A-Za-z0-9_-]+" if part == "*" else re.escape(part) for part in path.split("/")))


def _root(err: BaseException) -> BaseException:
    """The first cause: the libraries wrap it three or four times."""
    for _ in range(10):
        deeper = err.__cause__ or err.__context__
        if deeper is None:
            break
        err = deeper
    return err


@functools.cache
def _user_agent() -> str:
    try:
        return f"dualrail/{version('dualrail')}"
    except PackageNotFoundError:  # a checkout that was not installed
        return "dualrail/dev"
