"""How an order is submitted, once: over HTTP, or by an application through the Python API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import requests

from devtools.bench.remote import Remote, RemoteFailed
from devtools.chaos.orders import Order, What

_CODE_SECONDS, _BLAST_SECONDS = 4.0, 20.0
#: For a client that hangs up: long enough for the request to arrive.
_HANG_UP_SECONDS = 0.005
#: Nobody waits longer than that before he tries again, whatever Retry-After says.
_LONGEST_PAUSE = 2.0
#: What an application tries again: the database was away. Anything else is a refusal.
_PASSING = ("OperationalError", "InterfaceError")
#: Conflicts that pass: somebody, perhaps this client's own first try, is at it.
_BUSY = ("upload_in_progress",)


class Again(Exception):
    """Not answered, or told to come again in `seconds`."""

    def __init__(self, why: str, seconds: float = 0.0) -> None:
        super().__init__(why)
        self.why, self.seconds = why, seconds


class Refused(Exception):
    """An answer that no repetition will change."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Client(Protocol):
    def submit(self, order: Order, *, hang_up: bool) -> tuple[str, ...]:
        """The ids that it was answered: of the sends, or of the blast. `hang_up`: do not wait for the answer. Raises Again,
        Refused, requests.RequestException."""
        ...


class HttpClient:
    """One connection; used by one thread."""

    def __init__(self, url: str, keys: Mapping[str, str]) -> None:
        self._url = f"{url}/v1/messaging"
        self._keys = keys
        self._session = requests.Session()
        self._session.trust_env = False

    def submit(self, order: Order, *, hang_up: bool) -> tuple[str, ...]:
        seconds = _HANG_UP_SECONDS if hang_up else _CODE_SECONDS if order.what is What.CODE else _BLAST_SECONDS
        if order.what is What.CODE:
            to = {"category": "transactional", "to": order.recipients[0], "variables": {"code": "4711"}}
            return (self._post(order, "sends", _message(order, "{{ code }} is your code") | to, seconds)["id"],)
        body = {"category": "marketing", "name": order.key, **_message(order, "News for {{ name }}")}
        if order.what is What.BLAST:
            people = [{"to": to, "variables": {"name": to.partition("@")[0]}} for to in order.recipients]
            return (self._post(order, "blasts", body | {"recipients": people, "launch": True}, seconds)["id"],)
        blast = self._post(order, "blasts", body, _BLAST_SECONDS)["id"]
        rows = "to,name\n" + "".join(f"{to},{to.partition('@')[0]}\n" for to in order.recipients)
        self._post(order, f"blasts/{blast}/recipients?launch=true", rows, seconds)
        return (blast,)

    def _post(self, order: Order, path: str, body: Mapping[str, Any] | str, seconds: float) -> dict[str, Any]:
        kind = "text/csv" if isinstance(body, str) else "application/json"
        got = self._session.post(
            f"{self._url}/{path}",
            data=(body if isinstance(body, str) else json.dumps(body)).encode(),
            headers={
                "Authorization": f"Bearer {self._keys[order.tenant]}",
                "Idempotency-Key": order.key,
                "Content-Type": kind,
            },
            timeout=seconds,
        )
        if got.ok:
            answer: dict[str, Any] = got.json()
            return answer
        code = _code(got)
        why = f"{order.what.value}: {got.status_code} {code}"
        if got.status_code >= 500 or got.status_code == 429 or code in _BUSY:
            raise Again(why, min(_LONGEST_PAUSE, float(got.headers.get("Retry-After", 0))))
        raise Refused(why)


class ApplicationClient:
    """A process of an application; used by one thread."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def submit(self, order: Order, *, hang_up: bool) -> tuple[str, ...]:
        try:
            ids = self._remote.call("product", slug=order.tenant, recipients=order.recipients)
        except RemoteFailed as error:
            why = str(error).split(":")[1].strip()
            if why in _PASSING:
                raise Again(f"product: {why}") from error
            raise Refused(f"product: {error}") from error
        if hang_up:
            raise Again("product: the answer was not looked at")
        return tuple(ids)


def _message(order: Order, subject: str) -> dict[str, str]:
    return {"from": f"hello@{order.tenant}.example", "subject": subject, "text": f"Hello. {subject}."}


def _code(got: requests.Response) -> str:
    try:
        return str(got.json()["error"]["code"])
    except (ValueError, KeyError):
        return "without a code"
