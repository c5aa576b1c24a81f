"""Idempotency keys over HTTP."""

from __future__ import annotations

import json

import pytest

from devtools.sandbox.process import Sandbox
from tests.devtools.sandbox_client import connected, email, ids_of, name_of, raw_batch, send


def test_a_replay_answers_the_same_and_sends_nothing(sandbox: Sandbox) -> None:
    items = [email("a@mail.dev"), email("x"), email("b@mail.dev")]
    first = send(sandbox, items, key="k", permissive=True)
    again = send(sandbox, items, key="k", permissive=True)
    assert again.content == first.content
    stats = sandbox.stats()
    assert (stats["emails_accepted"], stats["batches_accepted"], stats["replays"]) == (2, 1, 1)
    assert stats["requests_counted"] == 2


def test_without_a_key_the_same_body_is_sent_twice(sandbox: Sandbox) -> None:
    assert ids_of(send(sandbox)) != ids_of(send(sandbox))


def test_bytes_are_compared_not_meaning(sandbox: Sandbox) -> None:
    body = json.dumps([email()])
    send(sandbox, body.encode(), key="k")
    assert name_of(send(sandbox, body.encode() + b" ", key="k")) == (409, "invalid_idempotent_request")
    assert sandbox.stats()["emails_accepted"] == 1


@pytest.mark.parametrize("key", ["", "k" * 257])
def test_a_key_has_1_to_256_characters(sandbox: Sandbox, key: str) -> None:
    assert name_of(send(sandbox, key=key)) == (400, "invalid_idempotency_key")
    assert send(sandbox, key="k" * 256).status_code == 200


def test_while_the_original_is_in_progress(sandbox: Sandbox) -> None:
    sandbox.fault("slow", count=1, extra_ms=60_000)
    with connected(sandbox) as sock:
        sock.sendall(raw_batch(key="k"))
        sandbox.wait(emails=1)
        assert name_of(send(sandbox, key="k")) == (409, "concurrent_idempotent_requests")
        assert name_of(send(sandbox, [email(subject="x")], key="k")) == (409, "invalid_idempotent_request")
    assert sandbox.stats()["emails_accepted"] == 1


def test_a_refused_request_leaves_its_key_free(sandbox: Sandbox) -> None:
    assert send(sandbox, [email("x")], key="k").status_code == 422
    assert send(sandbox, [email()], key="k").status_code == 200
