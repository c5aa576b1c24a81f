"""Every bad input: its stable code, its field, never a 500, and nothing stored."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from messaging.api import parsers
from messaging.api.blasts import views
from messaging.api.parsers import MAX_BODY
from messaging.api.slots import slot_of
from messaging.ledger import buckets
from messaging.models import Content, IdempotencyKey, RateLimitBucket, Send
from tests.messaging.tenant_rig import BODY, Speaker, error_of, make_tenant


def refused(answer: Any, status: int, code: str, field: str | None = None) -> dict[str, str]:
    error = error_of(answer)
    assert (answer.status_code, error["code"], error.get("field")) == (status, code, field), error
    assert not Send.objects.exists()
    assert not Content.objects.exists()
    assert not IdempotencyKey.objects.exists()
    return error


LONG_LOCAL = "a" * 65 + "@example.org"
LONG_ADDRESS = "a@" + ".".join(["b" * 60] * 5) + ".org"
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown category": ({"category": "otp"}, "unknown_category", "category"),
    "category of another type": ({"category": ["marketing"]}, "unknown_category", "category"),
    "missing category": ({"category": None}, "missing_field", "category"),
    "missing to": ({"to": None}, "missing_field", "to"),
    "missing from": ({"from_": None}, "missing_field", "from"),
    "missing subject": ({"subject": None}, "missing_field", "subject"),
    "unknown channel": ({"channel": "fax"}, "unknown_channel", "channel"),
    "channel without a provider": ({"channel": "sms"}, "unknown_channel", "channel"),
    "channel of another type": ({"channel": {}}, "unknown_channel", "channel"),
    "unknown field": ({"colour": "red"}, "unknown_field", "colour"),
    "python name of a field": ({"literal": True}, "unknown_field", "literal"),
    "idempotency key in the body": ({"idempotency_key": "k"}, "unknown_field", "idempotency_key"),
    "attachments": ({"attachments": []}, "attachments_not_supported", "attachments"),
    "a chosen rail": ({"rail": "transactional"}, "rail_not_choosable", "rail"),
    "malformed to": ({"to": "nobody"}, "invalid_address", "to"),
    "two addresses in to": ({"to": "a@example.org, b@example.org"}, "invalid_address", "to"),
    "a list in to": ({"to": ["a@example.org"]}, "invalid_type", "to"),
    "over-long local part": ({"to": LONG_LOCAL}, "address_too_long", "to"),
    "over-long to": ({"to": LONG_ADDRESS}, "address_too_long", "to"),
    "very long to": ({"to": "a" * 100_000}, "address_too_long", "to"),
    "malformed from": ({"from_": "Shop <>"}, "invalid_address", "from"),
    "over-long from": ({"from_": "Shop <" + LONG_ADDRESS + ">"}, "address_too_long", "from"),
    "from of another type": ({"from_": 7}, "invalid_type", "from"),
    "template in from": ({"from_": "{{ a }}@shop.example"}, "liquid_not_allowed", "from"),
    "malformed reply_to": ({"reply_to": ["help@shop.example", "x"]}, "invalid_address", "reply_to"),
    "CR/LF in to": ({"to": "a@example.org\r\nBcc: b@example.org"}, "header_injection", "to"),
    "CR/LF in from": ({"from_": "A\r\nBcc: x <hello@shop.example>"}, "header_injection", "from"),
    "CR/LF in subject": ({"subject": "Hi\r\nBcc: b@example.org"}, "header_injection", "subject"),
    "CR/LF in reply_to": ({"reply_to": "a@shop.example\nX: y"}, "header_injection", "reply_to"),
    "CR/LF in a header value": ({"headers": {"X-A": "1\r\nBcc: b@example.org"}}, "header_injection", "headers"),
    "CR/LF in a header name": ({"headers": {"X-A\r\nBcc": "1"}}, "header_injection", "headers"),
    "CR/LF in the subject through a variable": (
        {"subject": "Hi {{ name }}", "variables": {"name": "A\r\nBcc: b@example.org"}},
        "rendered_header_injection",
        "variables",
    ),
    "header value of another type": ({"headers": {"X-A": 1}}, "invalid_header", "headers"),
    "headers as a list": ({"headers": [["X-A", "1"]]}, "invalid_type", "headers"),
    "header name with a space": ({"headers": {"X A": "1"}}, "invalid_header", "headers"),
    "reserved header": ({"headers": {"Bcc": "b@example.org"}}, "reserved_header", "headers"),
    "empty subject": ({"subject": " "}, "empty_subject", "subject"),
    "long subject": ({"subject": "x" * 999}, "subject_too_long", "subject"),
    "subject of another type": ({"subject": 7}, "invalid_type", "subject"),
    "no body": ({"text": None}, "empty_body", "html"),
    "empty body": ({"text": "", "html": " \n"}, "empty_body", "html"),
    "body of another type": ({"text": {"a": 1}}, "invalid_type", "text"),
    "NUL in the body": ({"text": "a\x00b"}, "invalid_text", "text"),
    "template syntax error in text": ({"text": "{% if %}"}, "template_syntax", "text"),
    "template syntax error in html": ({"html": "{{ a | }}"}, "template_syntax", "html"),
    "template syntax error in subject": ({"subject": "{{ a"}, "template_syntax", "subject"),
    "template syntax error in a header": ({"headers": {"X-A": "{% endif %}"}}, "unknown_tag", "headers"),
    "undefined variable": ({"text": "{{ code }}"}, "undefined_variable", "variables"),
    "unknown filter": ({"text": "{{ 'a' | nope }}"}, "unknown_filter", "text"),
    "variables as a list": ({"variables": [1]}, "invalid_type", "variables"),
    "variables with a bad name": ({"variables": {"a b": 1}}, "invalid_variables", "variables"),
    "deep variables": ({"variables": {"a": [[[[[[[[[1]]]]]]]]]}}, "invalid_variables", "variables"),
    "long number in variables": ({"variables": {"a": 10**30}}, "invalid_variables", "variables"),
    "large variables": ({"variables": {"a": "x" * 20_000}}, "variables_too_large", "variables"),
    "not_before as a number": ({"not_before": 4102444800}, "invalid_time", "not_before"),
    "not_before without an offset": ({"not_before": "2030-01-01T00:00:00"}, "invalid_time", "not_before"),
    "not_before in words": ({"not_before": "tomorrow"}, "invalid_time", "not_before"),
    "not_before years ahead": ({"not_before": "2999-01-01T00:00:00Z"}, "too_far_ahead", "not_before"),
    "expires_at in the past": ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_too_early", "expires_at"),
    "expires_at as a bool": ({"expires_at": True}, "invalid_time", "expires_at"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_a_400(speaker: Speaker, case: str) -> None:
    change, code, field = CASES[case]
    error = refused(speaker.send(**change), 400, code, field)
    # No address, no body is quoted.
    assert "@" not in error["message"].replace("local@domain", "").replace("the @ ", "").replace("; @", "")


def test_attachments_are_refused_in_words(speaker: Speaker) -> None:
    error = refused(speaker.send(attachments=[{"content": "…"}]), 400, "attachments_not_supported", "attachments")
    assert "not supported" in error["message"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("x" * 5000, "x" * 60),
        ("a\r\nb\x1b[31m", "a??b??31m"),
        ("ada@example.org", "ada?example.org"),
        ("‮evil", "?evil"),
        ("", "(empty)"),
    ],
)
def test_the_name_of_an_unknown_field_is_cut_and_cleaned(speaker: Speaker, name: str, shown: str) -> None:
    error = refused(speaker.post(BODY | {name: 1}), 400, "unknown_field", shown)
    assert len(error["message"]) < 300
    assert error["message"].isprintable()


@pytest.mark.parametrize("domain", ["other.example", "mail.shop.example", "shop.example.org"])
def test_a_from_outside_the_sender_domains_is_a_403(speaker: Speaker, domain: str) -> None:
    make_tenant("other", "other.example")
    refused(speaker.send(from_=f"hello@{domain}"), 403, "sender_domain_not_allowed", "from")


def test_a_provider_without_a_global_bucket_is_a_503(speaker: Speaker) -> None:
    RateLimitBucket.objects.all().delete()
    buckets.forget()
    answer = speaker.send()
    error = refused(answer, 503, "provider_without_bucket")
    assert answer["Retry-After"] == "60"
    assert "admin" in error["message"]


def test_one_key_for_two_requests_is_a_409(speaker: Speaker) -> None:
    speaker.post(BODY, **{"Idempotency-Key": "order-1"})
    answer = speaker.post(BODY | {"text": "other"}, **{"Idempotency-Key": "order-1"})
    assert (answer.status_code, error_of(answer)["code"]) == (409, "idempotency_key_reused")
    assert speaker.sends() == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "schlüssel", "a\tb"])
def test_a_bad_idempotency_key_is_a_400(speaker: Speaker, key: str) -> None:
    refused(speaker.post(BODY, **{"Idempotency-Key": key}), 400, "invalid_idempotency_key", "idempotency_key")


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": "\xff"}',
        '{"a": "ü"}'.encode("latin-1"),
        '{"a": 1}'.encode("utf-16"),
        '\ufeff{"a": 1}'.encode(),
        b'{"to": "a@example.org", "to": "b@example.org"}',
        b'{"variables": {"a": 1, "a": 2}}',
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        b'{"a": "\x00"}',
        b'{"a": "\n"}',
        b'{"a": ' + b"1" * 5000 + b"}",
        nested(33),
        nested(5_000),
        nested(500_000),
        b'{"a":' * 100_000,
        b"[" * 500_000,
        b"[]",
        b'[{"to": "a@example.org"}]',
        b"null",
        b"1",
        b'"text"',
        b"to=a%40example.org",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_is_no_json_object_is_a_400(speaker: Speaker, body: bytes) -> None:
    error = refused(speaker.post(body), 400, "invalid_json")
    assert "@" not in error["message"]


def test_a_pair_of_surrogates_is_a_character(speaker: Speaker) -> None:
    body = json.dumps(BODY | {"subject": "Hi 🎉"}).encode()  # json.dumps writes it as an escaped pair
    assert b"\\ud83c\\udf89" in body
    assert speaker.post(body).status_code == 202


def test_html_and_text_of_more_than_a_megabyte_are_a_413(speaker: Speaker) -> None:
    refused(speaker.send(text="x" * 1_000_001), 413, "body_too_large", "text")
    refused(speaker.send(text="x" * 500_001, html="x" * 500_000), 413, "body_too_large", "html")


def test_a_body_above_its_limit_is_a_413(speaker: Speaker) -> None:
    refused(speaker.post(b'{"text": "' + b"x" * MAX_BODY + b'"}'), 413, "body_too_large")
    refused(speaker.post(b" " * 3 * MAX_BODY), 413, "body_too_large")


def escaped(value: object) -> str:
    """The longest form that JSON has: each character as its code, six bytes for one."""
    if isinstance(value, str):
        units = value.encode("utf-16-be").hex()
        return '"' + "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)) + '"'
    if isinstance(value, list):
        return f"[{', '.join(map(escaped, value))}]"
    assert isinstance(value, dict)
    return "{" + ", ".join(f"{escaped(name)}: {escaped(item)}" for name, item in value.items()) + "}"


@pytest.mark.parametrize("letter", ["x", "é", "漢", "🎉"])
def test_every_legal_content_fits_in_the_longest_form_that_it_has(speaker: Speaker, letter: str) -> None:
    """What is limited is what a field says, not how it is written."""
    most = BODY | {
        "text": letter * (1_000_000 // len(letter.encode())),
        "subject": letter * 998,
        "headers": {f"X-{i}-{'h' * 70}": letter * 998 for i in range(20)},
        "reply_to": [f"{letter * 50} <{i}@shop.example>" for i in range(10)],
        "variables": {"v": letter * (16_000 // len(letter.encode()))},
    }
    assert speaker.post(escaped(most).encode()).status_code == 202
    assert views.MAX_BODY - MAX_BODY >= 8 * 1024 * 1024  # and a blast has as much room for recipients as it had


def test_a_large_body_takes_a_slot_of_an_upload(speaker: Speaker) -> None:
    tenant = speaker.tenant.pk
    with slot_of(tenant), slot_of(tenant):
        refused(speaker.post(escaped(BODY | {"text": "x" * 300_000}).encode()), 429, "too_many_uploads")
        assert speaker.send(text="x" * 300_000).status_code == 202


def test_a_bug_while_a_body_is_read_is_a_500_and_not_the_clients_fault(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parsers, "_object", lambda pairs: int("ada@example.org"))
    monkeypatch.setattr(speaker.client, "raise_request_exception", False)
    answer = speaker.send()
    assert (answer.status_code, error_of(answer)["code"]) == (500, "internal_error")
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["request_failed"]


def test_a_body_without_an_end_is_a_411(speaker: Speaker) -> None:
    """On a server that does not mark the end of the input; gunicorn does (test_http)."""
    answer = speaker.client.post(
        "/v1/messaging/sends",
        headers=speaker.headers(**{"Transfer-Encoding": "chunked"}),
        content_type="application/json",
        CONTENT_LENGTH="",
    )
    refused(answer, 411, "length_required")


def test_a_large_body_that_is_not_too_large_is_taken(speaker: Speaker) -> None:
    assert speaker.send(text="x" * 1_000_000).status_code == 202


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"]
)
def test_another_content_type_is_a_415(speaker: Speaker, content_type: str) -> None:
    answer = speaker.client.generic(
        "POST", "/v1/messaging/sends", json.dumps(BODY), content_type=content_type, headers=speaker.headers()
    )
    refused(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
def test_a_compressed_body_is_a_415(speaker: Speaker, encoding: str) -> None:
    """And not called bad JSON, which it is not."""
    answer = speaker.post(gzip.compress(json.dumps(BODY).encode()), **{"Content-Encoding": encoding})
    refused(answer, 415, "unsupported_content_encoding")
    assert speaker.post(BODY, **{"Content-Encoding": "Identity"}).status_code == 202


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"]
)
def test_json_in_other_spellings_is_taken(speaker: Speaker, content_type: str) -> None:
    answer = speaker.client.generic(
        "POST", "/v1/messaging/sends", json.dumps(BODY), content_type=content_type, headers=speaker.headers()
    )
    assert answer.status_code == 202
