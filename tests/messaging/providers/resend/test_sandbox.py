"""The adapter against the sandbox provider: a real process that checks what Resend checks (docs/sandbox.md)."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import requests

from messaging.providers.base import Answer, Item, Verdict
from messaging.providers.resend.adapter import ResendAdapter

ROOT = Path(__file__).parents[4]
PATIENT, SHORT = 20.0, 0.3


class Sandbox:
    def __init__(self, url: str) -> None:
        self.url = url

    def reset(self) -> None:
        requests.post(f"{self.url}/_sandbox/reset", timeout=PATIENT).raise_for_status()

    def fault(self, kind: str, **params: Any) -> None:
        fault = {"fault": kind, "count": 1, **params}
        requests.post(f"{self.url}/_sandbox/faults", json=fault, timeout=PATIENT).raise_for_status()

    def accepted(self) -> list[UUID]:
        """The send ids of everything that it accepted."""
        lines = requests.get(f"{self.url}/_sandbox/log", timeout=PATIENT).text.splitlines()
        return [UUID(found) for line in lines for found in re.findall(r'"send_id":\s*"([0-9a-f-]{36})"', line)]


@contextlib.contextmanager
def running(*options: str) -> Iterator[Sandbox]:
    command = [sys.executable, "-m", "devtools.sandbox", "--port", "0", "--latency-ms", "0", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Sandbox(process.stdout.readline().rsplit(" ", 1)[1].strip())
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def process() -> Iterator[Sandbox]:
    with running("--rate", "0", "--verified-domain", "acme.test") as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(process: Sandbox) -> Sandbox:
    process.reset()
    return process


@pytest.fixture
def adapter(sandbox: Sandbox) -> Iterator[ResendAdapter]:
    adapter = ResendAdapter(api_key="re_sandbox", base_url=sandbox.url)
    with contextlib.closing(adapter.http):
        yield adapter


def batch(count: int = 3, **fields: Any) -> list[Item]:
    common: dict[str, Any] = {"sender": "Acme <news@acme.test>", "subject": "Grüße", "html": "<p>Hi</p>", "text": "Hi"}
    return [Item(send_id=uuid4(), to=f"delivered+{n}@resend.dev", **(common | fields)) for n in range(count)]


def send(adapter: ResendAdapter, items: Sequence[Item], *, key: str | None = None, timeout: float = PATIENT) -> Answer:
    key = key or str(items[0].send_id)
    return adapter.send(adapter.encode(items), items=len(items), idempotency_key=key, timeout=timeout)


def test_a_full_batch_with_everything_in_it(adapter: ResendAdapter, sandbox: Sandbox) -> None:
    items = batch(100, reply_to=("help@acme.test",), headers={"List-Unsubscribe": "<https://acme.test/u>"})
    answer = send(adapter, items)
    assert answer.verdict is Verdict.ACCEPTED, answer
    assert len(set(answer.provider_ids)) == 100
    assert sandbox.accepted() == [item.send_id for item in items]


def test_a_replay_gives_the_same_ids_and_sends_nothing(adapter: ResendAdapter, sandbox: Sandbox) -> None:
    items = batch()
    assert send(adapter, items).provider_ids == send(adapter, items).provider_ids
    assert len(sandbox.accepted()) == 3


@pytest.mark.parametrize(
    ("fault", "params"), [("drop_after_accept", {}), ("drop_after_accept", {"reset": True}), ("cut_body", {})]
)
def test_an_answer_that_was_lost_is_cleared_up_by_a_replay(
    adapter: ResendAdapter, sandbox: Sandbox, fault: str, params: dict[str, Any]
) -> None:
    sandbox.fault(fault, **params)
    items = batch()
    assert send(adapter, items).verdict is Verdict.UNKNOWN
    assert send(adapter, items).verdict is Verdict.ACCEPTED
    assert sandbox.accepted() == [item.send_id for item in items]


def test_a_provider_that_hangs_and_has_taken_the_batch(adapter: ResendAdapter, sandbox: Sandbox) -> None:
    sandbox.fault("hang", accept=True)
    items = batch()
    assert send(adapter, items, timeout=SHORT).verdict is Verdict.UNKNOWN
    assert sandbox.accepted() == [item.send_id for item in items]


@pytest.mark.parametrize(
    ("fault", "params", "verdict"),
    [
        ("drop_before", {}, Verdict.UNKNOWN),
        ("500", {}, Verdict.UNKNOWN),
        ("503", {}, Verdict.UNKNOWN),
        ("429", {"retry_after": 2}, Verdict.RATE_LIMITED),
        ("401", {}, Verdict.CREDENTIAL),
        ("403_key", {}, Verdict.CREDENTIAL),
        ("422", {}, Verdict.REFUSED),
        ("concurrent_409", {}, Verdict.IN_PROGRESS),
        ("403_account", {}, Verdict.SENDER_REFUSED),
        ("too_few_ids", {}, Verdict.MISCOUNTED),
    ],
)
def test_faults(adapter: ResendAdapter, sandbox: Sandbox, fault: str, params: dict[str, Any], verdict: Verdict) -> None:
    sandbox.fault(fault, **params)
    answer = send(adapter, batch())
    assert answer.verdict is verdict
    assert answer.retry_after == params.get("retry_after")


def test_a_bad_item_fails_alone(adapter: ResendAdapter, sandbox: Sandbox) -> None:
    items = batch(5)
    sandbox.fault("bad_item", recipient="delivered+3@")
    answer = send(adapter, items)
    assert answer.verdict is Verdict.ACCEPTED
    assert set(answer.item_errors) == {3}
    assert [found is None for found in answer.provider_ids] == [n == 3 for n in range(5)]
    assert sandbox.accepted() == [item.send_id for item in items if item is not items[3]]


def test_another_payload_under_the_same_key(adapter: ResendAdapter, sandbox: Sandbox) -> None:
    send(adapter, batch(), key="one")
    assert send(adapter, batch(), key="one").verdict is Verdict.KEY_CONFLICT


def test_a_sender_domain_that_is_not_verified(adapter: ResendAdapter) -> None:
    assert send(adapter, batch(sender="a@other.test")).verdict is Verdict.SENDER_REFUSED


def test_a_wrong_key(sandbox: Sandbox) -> None:
    adapter = ResendAdapter(api_key="re_wrong", base_url=sandbox.url)
    with contextlib.closing(adapter.http):
        assert send(adapter, batch()).verdict is Verdict.CREDENTIAL


def test_the_rate_limit_and_the_quota() -> None:
    with running("--rate", "1", "--window", "bucket", "--burst", "1", "--daily-quota", "1000") as sandbox:
        adapter = ResendAdapter(api_key="re_sandbox", base_url=sandbox.url)
        with contextlib.closing(adapter.http):
            first, second = send(adapter, batch(1)), send(adapter, batch(1))
    assert first.verdict is Verdict.ACCEPTED
    assert first.limit is not None
    assert second.verdict is Verdict.RATE_LIMITED
    assert second.retry_after is not None
    assert second.limit is not None
    assert second.limit.remaining == 0
    assert len(first.provider_ids) == 1
