"""Resend: the conformance suite, and every row of its outcome table on the wire."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from email.utils import formatdate
from typing import Any
from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.providers.base import Answer, Item, ItemError, LimitHint, Verdict
from messaging.providers.http.client import Reply
from messaging.providers.resend.adapter import ResendAdapter
from messaging.providers.resend.answers import read_answer
from tests.messaging.providers.conformance import PATIENT, SECRET, AdapterConformance
from tests.messaging.providers.stage import Response, Seen, Stage, open_stage, reply

SPACE = UUID("5f0c1e9a-0d6b-4d6e-9a57-6f3f0c8b7a11")


def item(n: int, **fields: Any) -> Item:
    values: dict[str, Any] = {
        "send_id": uuid5(SPACE, str(n)),
        "to": f"Zoë Nr. {n} <recipient+{n}@customer.example>",
        "sender": "Acme <news@acme.example>",
        "subject": f"Größe {n}",
        "html": f"<p>{n}</p>",
        "text": None,
    }
    return Item(**(values | fields))


def error(status: int, name: str, message: str = "Words.", **headers: str) -> Response:
    body = {"statusCode": status, "message": message, "name": name}
    return Response.of(status, body, {k.replace("_", "-"): v for k, v in headers.items()})


class TestConformance(AdapterConformance):
    def make_adapter(self, base_url: str) -> ResendAdapter:
        return ResendAdapter(api_key=SECRET, base_url=base_url)

    def make_item(self, n: int) -> Item:
        return item(n)

    def provider_id(self, send_id: UUID) -> str:
        return str(uuid5(SPACE, str(send_id)))

    def _ids(self, seen: Seen) -> list[dict[str, str]]:
        return [{"id": self.provider_id(UUID(email["tags"][0]["value"]))} for email in seen.json()]

    def accepting(self, seen: Seen) -> Response:
        return Response.of(200, {"data": self._ids(seen)})

    def rejecting(self, seen: Seen, index: int) -> Response:
        ids = self._ids(seen)
        del ids[index]
        return Response.of(200, {"data": ids, "errors": [{"index": index, "message": "Invalid `to` field."}]})

    def forgetting(self, seen: Seen) -> Response:
        return Response.of(200, {"data": self._ids(seen)[:-1]})

    def error(self, status: int, message: str) -> Response:
        return error(status, "validation_error", message)

    def refusals(self) -> Sequence[tuple[Verdict, Response]]:
        return [
            (Verdict.RATE_LIMITED, error(429, "rate_limit_exceeded")),
            (Verdict.QUOTA, error(429, "daily_quota_exceeded")),
            (Verdict.CREDENTIAL, error(401, "missing_api_key")),
            (Verdict.SENDER_REFUSED, error(403, "validation_error", "The acme.example domain is not verified.")),
            (Verdict.REFUSED, error(422, "validation_error")),
            (Verdict.KEY_CONFLICT, error(409, "invalid_idempotent_request")),
        ]


@pytest.fixture
def stage() -> Iterator[Stage]:
    with open_stage() as stage:
        yield stage


@pytest.fixture
def adapter(stage: Stage) -> Iterator[ResendAdapter]:
    adapter = ResendAdapter(api_key=SECRET, base_url=stage.url)
    with contextlib.closing(adapter.http):
        yield adapter


def send(adapter: ResendAdapter, count: int = 3) -> Answer:
    body = adapter.encode([item(n) for n in range(count)])
    return adapter.send(body, items=count, idempotency_key="key-1", timeout=PATIENT)


# -- the table ---------------------------------------------------------------------------------------------------------

V, VE = Verdict, "validation_error"

ROWS: list[tuple[Response, Verdict, str]] = [
    (error(429, "rate_limit_exceeded"), V.RATE_LIMITED, "rate_limit_exceeded"),
    (error(429, "something_new"), V.RATE_LIMITED, "something_new"),
    (Response(429, b"<html>slow down</html>"), V.RATE_LIMITED, "http_429"),
    (error(429, "daily_quota_exceeded"), V.QUOTA, "daily_quota_exceeded"),
    (error(429, "monthly_quota_exceeded"), V.QUOTA, "monthly_quota_exceeded"),
    (error(401, "missing_api_key"), V.CREDENTIAL, "missing_api_key"),
    (error(401, "restricted_api_key"), V.CREDENTIAL, "restricted_api_key"),
    (error(401, VE, "API key is invalid"), V.CREDENTIAL, VE),
    (Response(401), V.CREDENTIAL, "http_401"),
    (error(403, "invalid_api_key"), V.CREDENTIAL, "invalid_api_key"),
    (error(403, "suspended_api_key"), V.CREDENTIAL, "suspended_api_key"),
    (error(403, "account_suspended"), V.CREDENTIAL, "account_suspended"),
    (error(403, VE, "This API key is suspended."), V.CREDENTIAL, VE),
    (error(400, VE, "API key is invalid"), V.CREDENTIAL, VE),
    (error(403, VE, "The acme.example domain is not verified."), V.SENDER_REFUSED, VE),
    (error(403, VE, "You can only send testing emails to your own address."), V.SENDER_REFUSED, VE),
    # A tenant's own words, quoted in a message, do not open the circuit for everybody.
    (error(403, VE, "Domain of `API key is invalid <a@b.c>` is not verified."), V.SENDER_REFUSED, VE),
    (error(403, "domain_suspended"), V.SENDER_REFUSED, "domain_suspended"),
    (error(403, "brand_new"), V.SENDER_REFUSED, "brand_new"),
    (Response(403, b"error code: 1010"), V.SENDER_REFUSED, "http_403"),
    (error(409, "concurrent_idempotent_requests"), V.IN_PROGRESS, "concurrent_idempotent_requests"),
    (error(409, "invalid_idempotent_request"), V.KEY_CONFLICT, "invalid_idempotent_request"),
    (error(409, "something_new"), V.IN_PROGRESS, "something_new"),
    (Response(409), V.IN_PROGRESS, "http_409"),
    (Response(408), V.UNKNOWN, "http_408"),
    (error(500, "application_error"), V.UNKNOWN, "application_error"),
    (error(500, "rate_limit_exceeded"), V.UNKNOWN, "rate_limit_exceeded"),
    (Response(502, b"<html>"), V.UNKNOWN, "http_502"),
    (error(503, "service_unavailable"), V.UNKNOWN, "service_unavailable"),
    (Response(504), V.UNKNOWN, "http_504"),
    (Response(999), V.UNKNOWN, "http_999"),
    (Response(301, b"", {"location": "/emails"}), V.UNKNOWN, "http_301"),
    (Response(304), V.UNKNOWN, "http_304"),
    (error(400, VE, "An error was found with one or more fields."), V.REFUSED, VE),
    (error(400, "invalid_idempotency_key"), V.REFUSED, "invalid_idempotency_key"),
    (error(404, "not_found"), V.REFUSED, "not_found"),
    (error(405, "method_not_allowed"), V.REFUSED, "method_not_allowed"),
    (Response(413, b"too large"), V.REFUSED, "http_413"),
    (error(422, "missing_required_field"), V.REFUSED, "missing_required_field"),
    (error(422, VE, "API key is invalid"), V.REFUSED, VE),
    (error(451, "security_error"), V.REFUSED, "security_error"),
    (error(418, "teapot"), V.REFUSED, "teapot"),
    (error(422, "No Label! <a@b.c>"), V.REFUSED, "http_422"),
    (Response.of(422, ["not", "an", "object"]), V.REFUSED, "http_422"),
    (Response.of(422, {"name": 7, "message": {"a": 1}}), V.REFUSED, "http_422"),
]  # fmt: skip


@pytest.mark.parametrize(("response", "verdict", "code"), ROWS, ids=[f"{r.status}-{c}-{v}" for r, v, c in ROWS])
def test_outcome_table(adapter: ResendAdapter, stage: Stage, response: Response, verdict: Verdict, code: str) -> None:
    stage.default = reply(response)
    answer = send(adapter)
    assert (answer.verdict, answer.code, answer.http_status) == (verdict, code, response.status)
    assert answer.provider_ids == ()
    assert len(stage.requests) == 1


def ids(*names: str) -> list[dict[str, str]]:
    return [{"id": name} for name in names]


BAD_1 = [{"index": 1, "message": "Invalid `to` field: <eve@x.org>"}]

#: The body of a 200 to a batch of three.
BODIES: list[tuple[object, Verdict, tuple[str | None, ...]]] = [
    ({"data": ids("a", "b", "c")}, Verdict.ACCEPTED, ("a", "b", "c")),
    ({"data": ids("a", "b", "c"), "errors": None}, Verdict.ACCEPTED, ("a", "b", "c")),
    ({"data": ids("a", "b", "c"), "errors": [], "new": 1}, Verdict.ACCEPTED, ("a", "b", "c")),
    ({"data": ids("a", "c"), "errors": BAD_1}, Verdict.ACCEPTED, ("a", None, "c")),
    ({"data": [], "errors": [{"index": n} for n in (2, 0, 1)]}, Verdict.ACCEPTED, (None, None, None)),
    ({"data": ids("a", "b")}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b", "c", "d")}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b", "c"), "errors": BAD_1}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a"), "errors": BAD_1}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b"), "errors": [{"index": 3}]}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b"), "errors": [{"index": -1}]}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b"), "errors": [{"index": True}]}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b"), "errors": [{"index": "1"}]}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b"), "errors": [{}]}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b"), "errors": ["?"]}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b"), "errors": {"1": "?"}}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a"), "errors": [*BAD_1, *BAD_1]}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b", "b")}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b", "")}, Verdict.MISCOUNTED, ()),
    ({"data": ids("a", "b", "\udc00")}, Verdict.MISCOUNTED, ()),
    ({"data": [*ids("a", "b"), {}]}, Verdict.MISCOUNTED, ()),
    ({"data": [*ids("a", "b"), "c"]}, Verdict.MISCOUNTED, ()),
    ({"data": [*ids("a", "b"), {"id": 3}]}, Verdict.MISCOUNTED, ()),
    ({"data": {"0": "a"}}, Verdict.UNKNOWN, ()),
    ({}, Verdict.UNKNOWN, ()),
    ([], Verdict.UNKNOWN, ()),
    (None, Verdict.UNKNOWN, ()),
    ("ok", Verdict.UNKNOWN, ()),
]


@pytest.mark.parametrize(("value", "verdict", "expected"), BODIES, ids=[json.dumps(row[0]) for row in BODIES])
def test_bodies_of_a_2xx(
    adapter: ResendAdapter, stage: Stage, value: object, verdict: Verdict, expected: tuple[str | None, ...]
) -> None:
    stage.default = reply(Response.of(200, value))
    answer = send(adapter, 3)
    assert (answer.verdict, answer.provider_ids) == (verdict, expected)
    assert bool(answer.code) == (verdict is not Verdict.ACCEPTED)


def test_item_errors_carry_the_providers_words_without_addresses(adapter: ResendAdapter, stage: Stage) -> None:
    stage.default = reply(Response.of(200, {"data": ids("a", "c"), "errors": BAD_1}))
    assert send(adapter).item_errors == {1: ItemError("item_rejected", "Invalid `to` field: <[address]>")}


# -- headers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2", 2.0),
        ("0", 0.0),
        ("1.5", 1.5),
        (" 3 ", 3.0),
        ("999999", 86_400.0),
        ("-1", None),
        ("1e3", None),
        ("nan", None),
        ("inf", None),
        ("1_0", None),
        ("٣", None),
        ("soon", None),
        ("", None),
        ("9" * 400, None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", None),
        ("Thu, 99 Jan 2099 00:00:00 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0),
    ],
)
def test_retry_after(value: str, expected: float | None) -> None:
    answer = read_answer(Reply(429, {"retry-after": value}, b"", complete=True), 1, SECRET)
    assert answer.retry_after == expected


def test_retry_after_as_a_date(adapter: ResendAdapter, stage: Stage) -> None:
    stage.default = reply(error(429, "rate_limit_exceeded", retry_after=formatdate(time.time() + 30, usegmt=True)))
    waited = send(adapter).retry_after
    assert waited is not None
    assert 25 < waited <= 30


def test_the_limit_is_read_from_every_answer(adapter: ResendAdapter, stage: Stage) -> None:
    headers = {"ratelimit-limit": "10", "ratelimit-remaining": "9", "ratelimit-reset": "1"}
    stage.default = reply(Response.of(200, {"data": ids("a", "b", "c")}, headers))
    assert send(adapter).limit == LimitHint(10.0, 9.0, 1.0)
    stage.default = reply(Response(503, b"", {"ratelimit-limit": "many", "ratelimit-remaining": "0"}))
    assert send(adapter).limit == LimitHint(None, 0.0, None)
    stage.default = reply(Response(503, b"", {"ratelimit-limit": "-1", "ratelimit-reset": "nan"}))
    assert send(adapter).limit is None


# -- the request -------------------------------------------------------------------------------------------------------


def test_the_request_on_the_wire(adapter: ResendAdapter, stage: Stage) -> None:
    send(adapter)
    seen = stage.requests[0]
    assert (seen.method, seen.path) == ("POST", "/emails/batch")
    assert seen.headers["authorization"] == f"Bearer {SECRET}"
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["idempotency-key"] == "key-1"
    assert seen.headers["x-batch-validation"] == "permissive"
    assert seen.headers["accept-encoding"] == "identity"


texts = st.text(st.characters(exclude_categories=()), max_size=12)  # lone surrogates too
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["data", "errors", "id", "index", "name", "message"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(status=st.integers(100, 999), value=json_values, items=st.integers(1, 4), header=st.text(max_size=12))
def test_any_json_gives_an_answer_that_adds_up(status: int, value: Any, items: int, header: str) -> None:
    headers = {"retry-after": header, "ratelimit-limit": header}
    answer = read_answer(Reply(status, headers, json.dumps(value).encode(), complete=True), items, SECRET)
    assert (answer.verdict is Verdict.ACCEPTED) == bool(answer.provider_ids)
    if answer.verdict is Verdict.ACCEPTED:
        assert 200 <= status < 300
        assert len(answer.provider_ids) == items
        assert {n for n, found in enumerate(answer.provider_ids) if found is None} == set(answer.item_errors)
    assert answer.verdict is not Verdict.NOT_SENT


# -- the key -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "code"), [("", "missing_api_key"), ("  \n", "missing_api_key")])
@pytest.mark.parametrize("status", [200])
def test_without_a_key_nothing_is_asked(stage: Stage, key: str, code: str, status: int) -> None:
    answer = send(ResendAdapter(api_key=key, base_url=stage.url))
    assert (answer.verdict, answer.code) == (Verdict.CREDENTIAL, code)
    assert stage.connections == 0


@pytest.mark.parametrize("key", ["re_a\nb", "re_ключ", "re_\x00"])
def test_a_key_that_cannot_be_one_is_not_sent(stage: Stage, key: str) -> None:
    answer = send(ResendAdapter(api_key=key, base_url=stage.url))
    assert (answer.verdict, answer.code) == (Verdict.CREDENTIAL, "malformed_api_key")
    assert stage.connections == 0


def test_settings_are_read_at_construction(settings: Any, stage: Stage) -> None:
    settings.RESEND_API_KEY, settings.RESEND_BASE_URL = "re_from_settings\n", stage.url
    adapter = ResendAdapter()
    settings.RESEND_API_KEY, settings.RESEND_BASE_URL = "re_other", "http://other.invalid"
    with contextlib.closing(adapter.http):
        send(adapter)
    assert stage.requests[0].headers["authorization"] == "Bearer re_from_settings"


@pytest.mark.parametrize("key", ["", "x" * 257, "line\nbreak", "ключ"])
def test_an_idempotency_key_that_the_provider_would_refuse_is_a_bug(adapter: ResendAdapter, key: str) -> None:
    with pytest.raises(ValueError, match="idempotency key"):
        adapter.send(b"[]", items=1, idempotency_key=key, timeout=PATIENT)
