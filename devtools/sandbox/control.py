"""The sandbox's own endpoints, under `/_sandbox/`: set faults, read or look at what was accepted, wait, start again.

They need no key, pass no limit and appear in no count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

from devtools.sandbox.fault_kinds import KINDS
from devtools.sandbox.faults import FaultError
from devtools.sandbox.inbox import Inbox
from devtools.sandbox.messages import Answer, Request, json_answer
from devtools.sandbox.provider import Provider

PREFIX = "/_sandbox/"
MAX_WAIT_S = 60.0
MAX_AWAY_S = 600.0
_EMAIL = "inbox/"

Respond = Callable[[Answer], None]


class Control:
    def __init__(self, provider: Provider, shut: Callable[[float], None]) -> None:
        self._provider = provider
        self._shut = shut
        self._inbox = Inbox(provider, f"{PREFIX}inbox")
        self._routes: dict[str, dict[str, Callable[[Request], Answer]]] = {
            "health": {"GET": self._health},
            "inbox": {"GET": self._inbox.page},
            "log": {"GET": self._log},
            "stats": {"GET": self._stats},
            "reset": {"POST": self._reset},
            "away": {"POST": self._away},
            "faults": {"GET": self._get_faults, "POST": self._add_faults, "DELETE": self._clear_faults},
        }

    def handle(self, request: Request, respond: Respond) -> None:
        name = request.path.removeprefix(PREFIX)
        try:
            if name == "wait" and request.method == "GET":
                self._wait(request, respond)
            elif name.startswith(_EMAIL) and request.method == "GET":
                respond(self._inbox.email(name.removeprefix(_EMAIL)))
            elif name not in self._routes:
                respond(_wrong(404, f"Unknown. There are: {', '.join(sorted([*self._routes, 'wait']))}."))
            elif request.method not in self._routes[name]:
                respond(_wrong(405, f"Use {' or '.join(self._routes[name])}."))
            else:
                respond(self._routes[name][request.method](request))
        except ValueError as err:
            respond(_wrong(400, str(err)))

    def _health(self, _: Request) -> Answer:
        return json_answer(200, {"status": "ok"})

    def _log(self, request: Request) -> Answer:
        lines = self._provider.log.lines(_number(request, "after"))
        return Answer(200, content_type="application/x-ndjson", stream=lines)

    def _stats(self, _: Request) -> Answer:
        return json_answer(200, self._provider.stats.report(self._provider.log))

    def _reset(self, _: Request) -> Answer:
        self._provider.reset()
        return json_answer(200, {"status": "reset"})

    def _away(self, request: Request) -> Answer:
        """From now on nothing listens, for `seconds`: neither this nor the provider's own routes."""
        seconds = float(request.query.get("seconds", "1"))
        if not 0 < seconds <= MAX_AWAY_S:
            raise ValueError(f"seconds must be above 0 and at most {MAX_AWAY_S:g}.")
        self._shut(seconds)
        return json_answer(202, {"status": "away", "seconds": seconds})

    def _get_faults(self, _: Request) -> Answer:
        known = {name: {"about": kind.about, "fields": sorted(kind.params)} for name, kind in KINDS.items()}
        return json_answer(200, {"active": self._provider.faults.describe(), "known": known})

    def _add_faults(self, request: Request) -> Answer:
        try:
            ids = self._provider.faults.add(orjson.loads(request.body))
        except orjson.JSONDecodeError as err:
            raise FaultError("The body must be JSON.") from err
        return json_answer(201, {"ids": ids})

    def _clear_faults(self, request: Request) -> Answer:
        fault_id = _number(request, "id") if "id" in request.query else None
        return json_answer(200, {"removed": self._provider.faults.clear(fault_id)})

    def _wait(self, request: Request, respond: Respond) -> None:
        """Answers as soon as there are `emails` accepted and `requests` received, or after `timeout` seconds."""
        emails, requests = _number(request, "emails"), _number(request, "requests")
        timeout = float(request.query.get("timeout", "10"))
        if not 0 <= timeout <= MAX_WAIT_S:
            raise ValueError(f"timeout must be a number of seconds, at most {MAX_WAIT_S:g}.")
        provider, stats = self._provider, self._provider.stats
        answered = False

        def reached() -> bool:
            return provider.log.total >= emails and stats.received >= requests

        def answer() -> None:
            nonlocal answered
            if not answered:
                answered = True
                counts: dict[str, Any] = {"emails_accepted": provider.log.total, "requests_received": stats.received}
                respond(json_answer(200, {"reached": reached(), **counts}))

        def watcher() -> bool:
            if reached():
                answer()
            return answered

        if not watcher():
            stats.watch(watcher)
            asyncio.get_running_loop().call_later(timeout, answer)


def _wrong(status: int, message: str) -> Answer:
    return json_answer(status, {"message": message})


def _number(request: Request, name: str) -> int:
    text = request.query.get(name, "0")
    if not text.isdecimal():
        raise ValueError(f"{name} must be a whole number.")
    return int(text)
