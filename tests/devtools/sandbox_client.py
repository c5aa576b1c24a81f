"""A client that can be wrong in every way: for tests of the sandbox only."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests

from devtools.sandbox.process import Sandbox

KEY = {"authorization": "Bearer re_sandbox"}


def email(to: str | list[str] = "ann@mail.dev", **fields: Any) -> dict[str, Any]:
    base = {"from": "Acme <news@acme.dev>", "to": to, "subject": "News", "text": "Hello"}
    return {name: value for name, value in (base | fields).items() if value is not None}


def tagged(send_id: str, **fields: Any) -> dict[str, Any]:
    return email(tags=[{"name": "send_id", "value": send_id}], **fields)


def call(sandbox: Sandbox, method: str, path: str, **kwargs: Any) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        return session.request(method, sandbox.url + path, timeout=10, **kwargs)


def send(
    sandbox: Sandbox,
    items: Any = None,
    *,
    key: str | None = None,
    permissive: bool = False,
    headers: dict[str, Any] | None = None,
) -> requests.Response:
    """POST /emails/batch; one good e-mail unless told otherwise. A header of None is left out."""
    all_headers: dict[str, Any] = dict(KEY)
    if key is not None:
        all_headers["idempotency-key"] = key
    if permissive:
        all_headers["x-batch-validation"] = "permissive"
    body = items if isinstance(items, bytes) else json.dumps([email()] if items is None else items)
    return call(sandbox, "POST", "/emails/batch", data=body, headers=all_headers | (headers or {}))


def name_of(response: requests.Response) -> tuple[int, str]:
    """Status and name of an error; checks its shape."""
    error = response.json()
    assert error.keys() == {"statusCode", "message", "name"}
    assert error["statusCode"] == response.status_code
    return response.status_code, error["name"]


def ids_of(response: requests.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [entry["id"] for entry in response.json()["data"]]


def raw_batch(items: Any = None, *, key: str | None = None, extra: str = "") -> bytes:
    """The bytes of a batch request."""
    body = json.dumps([email()] if items is None else items).encode()
    head = f"POST /emails/batch HTTP/1.1\r\nhost: x\r\nuser-agent: test\r\nauthorization: {KEY['authorization']}\r\n"
    if key is not None:
        head += f"idempotency-key: {key}\r\n"
    return f"{head}{extra}content-length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def connected(sandbox: Sandbox) -> Iterator[socket.socket]:
    parts = urlsplit(sandbox.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as sock:
        yield sock


def read_all(sock: socket.socket) -> bytes:
    """Everything until the other side closes."""
    data = b""
    while chunk := sock.recv(65_536):
        data += chunk
    return data
