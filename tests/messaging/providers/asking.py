"""Asking a staged server through the HTTP client: what the tests of the client share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from messaging.providers.http.client import HttpClient, NoReply, Reply
from tests.messaging.providers import stage as staged
from tests.messaging.providers.stage import Response, Stage, open_stage

#: Seconds: more than enough; little; and how late giving up may be.
PATIENT, SHORT, GRACE = 20.0, 0.3, 0.5

ENDPOINTS = [("POST", "/x"), ("GET", "/x/*")]
OK = staged.reply(Response(200, b"{}"))


@pytest.fixture
def stage() -> Iterator[Stage]:
    with open_stage() as stage:
        stage.default = OK
        yield stage


@pytest.fixture
def client(stage: Stage) -> Iterator[HttpClient]:
    with contextlib.closing(HttpClient(stage.url, ENDPOINTS)) as client:
        yield client


def ask(client: HttpClient, body: bytes = b"hello", timeout: float = PATIENT) -> Reply | NoReply:
    return client.request("POST", "/x", headers={}, body=body, timeout=timeout)


def asked(client: HttpClient, **kwargs: Any) -> Reply:
    reply = ask(client, **kwargs)
    assert isinstance(reply, Reply), reply
    return reply


def lost(client: HttpClient, **kwargs: Any) -> tuple[bool, str]:
    """(wrote, code) of a request that must not be answered, in time."""
    started = time.monotonic()
    reply = ask(client, **kwargs)
    assert time.monotonic() - started < kwargs.get("timeout", PATIENT) + GRACE
    assert isinstance(reply, NoReply), reply
    return reply.wrote, reply.code
