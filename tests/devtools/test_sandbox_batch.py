"""POST /emails/batch and GET /emails/{id}: who may send, what is refused, what an answer looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from devtools.sandbox.process import Sandbox
from tests.devtools.sandbox_client import KEY, call, connected, email, ids_of, name_of, raw_batch, read_all, send


def test_a_batch_is_accepted_in_order(sandbox: Sandbox) -> None:
    ids = ids_of(send(sandbox, [email(f"r{n}@mail.dev") for n in range(100)]))
    assert len(set(ids)) == 100
    assert [(line["id"], line["to"]) for line in sandbox.log()] == [(i, [f"r{n}@mail.dev"]) for n, i in enumerate(ids)]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, (401, "missing_api_key")),
        ("Basic abc", (401, "missing_api_key")),
        ("Bearer ", (401, "missing_api_key")),
        ("Bearer re_other", (403, "invalid_api_key")),
    ],
)
def test_the_key_is_checked(sandbox: Sandbox, header: str | None, expected: tuple[int, str]) -> None:
    assert name_of(send(sandbox, headers={"authorization": header})) == expected
    assert sandbox.stats()["requests_received"] == 1
    assert sandbox.stats()["requests_counted"] == 0


def test_several_keys_can_be_valid(start: Callable[..., Sandbox]) -> None:
    sandbox = start("--rate", "0", "--latency-ms", "0", "--api-key", "re_a", "--api-key", "re_b")
    for key in ("re_a", "re_b"):
        assert send(sandbox, headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert send(sandbox).status_code == 403


def test_a_user_agent_is_required(sandbox: Sandbox) -> None:
    with connected(sandbox) as sock:
        sock.sendall(raw_batch(extra="connection: close\r\n").replace(b"user-agent: test\r\n", b""))
        assert read_all(sock).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/emails", (404, "not_found")),
        ("POST", "/broadcasts", (404, "not_found")),
        ("GET", "/emails/", (404, "not_found")),
        ("GET", "/emails/unknown", (404, "not_found")),
        ("GET", "/emails/batch", (405, "method_not_allowed")),
        ("DELETE", "/emails/some-id", (405, "method_not_allowed")),
    ],
)
def test_other_routes(sandbox: Sandbox, method: str, path: str, expected: tuple[int, str]) -> None:
    assert name_of(call(sandbox, method, path, headers=KEY)) == expected
    assert sandbox.stats()["emails_accepted"] == 0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{nope", (400, "validation_error")),
        (b"", (400, "validation_error")),
        (b'{"emails": []}', (400, "validation_error")),
        ([], (422, "validation_error")),
        ([email()] * 101, (422, "validation_error")),
    ],
)
def test_the_body_is_an_array_of_1_to_100(sandbox: Sandbox, body: Any, expected: tuple[int, str]) -> None:
    assert name_of(send(sandbox, body)) == expected


BAD_ITEMS = {
    "not an object": "hello",
    "no from": email() | {"from": ""},
    "from is no address": email() | {"from": "Acme"},
    "from is a list": email() | {"from": ["a@acme.dev"]},
    "no to": email([]),
    "51 recipients": email([f"r{n}@mail.dev" for n in range(51)]),
    "to is no address": email("ann at mail.dev"),
    "to is a number": email([7]),  # type: ignore[list-item]
    "to at example.com": email("ann@example.com"),
    "to at TEST.COM": email("Ann <ann@TEST.COM>"),
    "cc at example.com": email(cc=["ann@example.com"]),
    "bcc is no address": email(bcc="ann"),
    "no subject": email(subject=None),
    "neither html nor text": email(text=None),
    "html is a number": email(html=3),
    "a header is a number": email(headers={"X-Id": 7}),
    "headers are a list": email(headers=["X-Id"]),
    "tags are an object": email(tags={"name": "a", "value": "b"}),
    "a tag with a space": email(tags=[{"name": "a b", "value": "c"}]),
    "a tag of 257 characters": email(tags=[{"name": "a", "value": "c" * 257}]),
    "a tag without a value": email(tags=[{"name": "a"}]),
    "attachments": email(attachments=[{"filename": "a.txt", "content": "eA=="}]),
    "scheduled_at": email(scheduled_at="in 1 hour"),
}


@pytest.mark.parametrize("item", BAD_ITEMS.values(), ids=BAD_ITEMS.keys())
def test_a_bad_item_refuses_the_batch_or_itself(sandbox: Sandbox, item: Any) -> None:
    items = [email("a@mail.dev"), item, email("b@mail.dev")]
    strict = send(sandbox, items)
    assert name_of(strict)[0] == 422
    assert sandbox.stats()["emails_accepted"] == 0

    permissive = send(sandbox, items, permissive=True)
    assert len(ids_of(permissive)) == 2
    assert permissive.json()["errors"] == [{"index": 1, "message": strict.json()["message"]}]
    assert [line["to"] for line in sandbox.log()] == [["a@mail.dev"], ["b@mail.dev"]]


GOOD_ITEMS = {
    "plain address as from": email() | {"from": "news@acme.dev"},
    "50 recipients": email([f"r{n}@mail.dev" for n in range(50)]),
    "html only": email(html="<p>x</p>", text=None),
    "headers": email(headers={"List-Unsubscribe": "<https://acme.dev/u>"}),
    "tags": email(tags=[{"name": "A_z-9", "value": "v" * 256}]),
    "reply_to": email(reply_to="ann@acme.dev"),
    "example.com only in from": email() | {"from": "a@example.com"},
    "test address with a label": email("delivered+login@resend.dev"),
    "nulls are absent": email() | {"headers": None, "tags": None, "attachments": None, "scheduled_at": None},
}


@pytest.mark.parametrize("item", GOOD_ITEMS.values(), ids=GOOD_ITEMS.keys())
def test_what_is_accepted(sandbox: Sandbox, item: Any) -> None:
    assert len(ids_of(send(sandbox, [item]))) == 1


def test_permissive_has_no_errors_field_when_all_is_well(sandbox: Sandbox) -> None:
    assert send(sandbox, permissive=True).json().keys() == {"data"}


def test_permissive_with_only_bad_items_accepts_none(sandbox: Sandbox) -> None:
    answer = send(sandbox, [email("x")], permissive=True)
    assert ids_of(answer) == []
    assert len(answer.json()["errors"]) == 1
    assert sandbox.stats()["batches_accepted"] == 0


def test_only_verified_domains_may_be_sent_from(start: Callable[..., Sandbox]) -> None:
    sandbox = start("--rate", "0", "--latency-ms", "0", "--verified-domain", "Acme.dev")
    assert send(sandbox).status_code == 200
    refused = send(sandbox, [email(), email() | {"from": "x@other.dev"}], permissive=True)
    assert name_of(refused) == (403, "validation_error")
    assert "other.dev domain is not verified" in refused.json()["message"]
    assert sandbox.stats()["emails_accepted"] == 1


@pytest.mark.parametrize(
    ("to", "event"),
    [
        ("ann@mail.dev", "delivered"),
        ("delivered@resend.dev", "delivered"),
        ("bounced+label@resend.dev", "bounced"),
        ("complained@resend.dev", "complained"),
        ("bounced@mail.dev", "delivered"),
    ],
)
def test_an_email_can_be_asked_for(sandbox: Sandbox, to: str, event: str) -> None:
    _, email_id = ids_of(send(sandbox, [email(), email(to)]))
    found = call(sandbox, "GET", f"/emails/{email_id}", headers=KEY).json()
    assert (found["id"], found["to"], found["last_event"]) == (email_id, [to], event)


def test_an_id_from_before_a_reset_is_unknown(sandbox: Sandbox) -> None:
    [old] = ids_of(send(sandbox))
    sandbox.reset()
    send(sandbox)
    assert name_of(call(sandbox, "GET", f"/emails/{old}", headers=KEY)) == (404, "not_found")


def test_the_rate_limit_holds_over_all_keys(start: Callable[..., Sandbox]) -> None:
    flags = ("--rate", "1", "--window", "bucket", "--burst", "3", "--latency-ms", "0")
    sandbox = start(*flags, "--api-key", "re_a", "--api-key", "re_b")
    answers = [send(sandbox, headers={"authorization": f"Bearer re_{key}"}) for key in "abababab"]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert [answer.status_code for answer in answers[:3]] == [200] * 3
    assert answers[0].headers["ratelimit-policy"] == "1;w=1"
    assert name_of(refused[0]) == (429, "rate_limit_exceeded")
    assert refused[0].headers["retry-after"] == "1"
    stats = sandbox.stats()
    assert stats["requests_received"] == 8
    assert stats["requests_counted"] == stats["by_status"]["200"] == 8 - len(refused)


def test_without_a_limit_there_are_no_headers_about_one(sandbox: Sandbox) -> None:
    assert not [name for name in send(sandbox).headers if name.lower().startswith(("ratelimit", "x-resend"))]


def test_the_daily_quota_counts_emails(start: Callable[..., Sandbox]) -> None:
    sandbox = start("--rate", "0", "--latency-ms", "0", "--daily-quota", "5")
    assert send(sandbox, [email()] * 3).headers["x-resend-daily-quota"] == "3"
    refused = send(sandbox, [email()] * 3)
    assert name_of(refused) == (429, "daily_quota_exceeded")
    assert refused.headers["x-resend-daily-quota"] == "3"
    assert send(sandbox, [email()] * 2).status_code == 200
    assert sandbox.stats()["emails_accepted"] == 5
