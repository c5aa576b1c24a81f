"""Invariant 8: nothing raw (address, credential, body) in a log line, metric label, exception text or answer. Addresses are
stored AES-256-GCM encrypted with a key id, and found by a separate HMAC fingerprint."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.db import connection

from config.logs import JsonFormatter
from core.models import ApiKey
from core.security.crypto import FINGERPRINT_BYTES, Keyring, SealError, fingerprint, keyring
from messaging.channels.sealing import open_recipient
from messaging.clock import run_once
from messaging.domain.errors import MessagingError
from messaging.domain.rails import Rail
from messaging.models import Content, Send
from messaging.services.submit import submit
from tests.factories import make_tenant, request, submit_some
from tests.rig import Rig

SECRETS = ["zoe.secret", "4711-otp", "geheim-subject", "reply.secret", "sender.secret", "re_sandbox"]


@pytest.fixture
def log_text() -> Iterator[io.StringIO]:
    """Everything that is logged, at the lowest level, as production writes it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    loggers = [root, *(logging.getLogger(n) for n in ("dramatiq", "urllib3", "messaging", "core", "django"))]
    levels = [logger.level for logger in loggers]
    root.addHandler(handler)
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def _request(tenant: Any, **values: Any) -> dict[str, Any]:
    return (
        request(
            tenant,
            to="Zoe <zoe.secret@recipients.org>",
            from_=f"sender.secret@{tenant.slug}.org",
            reply_to="reply.secret@replies.org",
            subject="geheim-subject",
            text="Code {{ code }}",
            variables={"code": "4711-otp"},
        )
        | values
    )


def test_no_log_line_of_a_whole_life_holds_anything_raw(rig: Rig, log_text: io.StringIO) -> None:
    tenant = make_tenant()
    for fault in ("500", "422", "429", "401", "cut_body", "drop_after_accept", "too_few_ids"):
        submit(tenant, **_request(tenant))
        rig.sandbox.fault(fault, count=1, **({"message": "zoe.secret@recipients.org is bad"} if fault == "422" else {}))
        for rail in Rail:
            rig.turn(rail)
        rig.unblock()
        rig.lapse_leases()
        run_once()
    rig.redis.connection_pool.disconnect()
    written = log_text.getvalue()
    assert "batch_recorded" in written
    assert [s for s in SECRETS if s in written] == []


@pytest.mark.parametrize(
    "bad",
    [
        {"to": "zoe.secret@recipients.org, other@x.org"},
        {"from_": "sender.secret@elsewhere.org"},
        {"subject": "geheim-subject\r\nBcc: zoe.secret@recipients.org"},
        {"text": "{{ missing }} 4711-otp"},
        {"headers": {"X-Zoe": "zoe.secret\n"}},
        {"text": "{% broken 4711-otp %}"},
    ],
)
def test_no_error_quotes_what_it_refuses(rig: Rig, bad: dict[str, Any]) -> None:
    tenant = make_tenant()
    with pytest.raises(MessagingError) as caught:
        submit(tenant, **_request(tenant, **bad))
    told = f"{caught.value} {caught.value.message} {caught.value.field}"
    assert [s for s in SECRETS if s in told] == []


def test_the_database_holds_no_address_body_or_key_in_clear(rig: Rig) -> None:
    tenant = make_tenant()
    key = ApiKey.issue(tenant, "test")[1]
    submit(tenant, **_request(tenant), idempotency_key="k")
    submit_some(tenant, 1, to="someone@example.com")
    rig.sandbox.fault("422", count=1, message="zoe.secret@recipients.org is bad")
    for _ in range(3):
        rig.turn()
    found = []
    with connection.cursor() as cursor:
        for app in ("core", "messaging"):
            for model in apps.get_app_config(app).get_models():
                cursor.execute(f'SELECT t::text, t.* FROM "{model._meta.db_table}" t')
                for row in cursor.fetchall():
                    raw = row[0].encode() + b"".join(bytes(v) for v in row if isinstance(v, memoryview))
                    found += [(model.__name__, s) for s in [*SECRETS, key] if s.encode() in raw]
    assert found == []


def test_an_address_is_sealed_with_a_key_id_and_found_by_its_fingerprint(rig: Rig) -> None:
    tenant = make_tenant()
    send = Send.objects.get(pk=submit(tenant, **_request(tenant)).id)
    sealed = bytes(send.sealed)
    key_id = next(iter(settings.ENCRYPTION_KEYS)).encode()
    assert sealed[2 : 2 + len(key_id)] == key_id
    assert open_recipient(send.pk, sealed)[0] == "Zoe <zoe.secret@recipients.org>"
    assert bytes(send.fingerprint) == fingerprint("zoe.secret@recipients.org")
    assert len(send.fingerprint) == FINGERPRINT_BYTES


def test_a_sealed_value_opens_only_for_its_row_and_with_its_key() -> None:
    ring = Keyring({"a": b"a" * 32, "b": b"b" * 32})
    sealed = ring.seal(b"value", b"row 1")
    assert ring.open(sealed, b"row 1") == b"value"
    with pytest.raises(SealError):
        ring.open(sealed, b"row 2")
    with pytest.raises(SealError, match="not in ENCRYPTION_KEYS"):
        Keyring({"b": b"b" * 32}).open(sealed, b"row 1")
    with pytest.raises(SealError):
        Keyring({"a": b"x" * 32}).open(sealed, b"row 1")
    for i in range(len(sealed)):
        with pytest.raises(SealError):
            ring.open(sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :], b"row 1")


def test_a_key_is_rotated_by_putting_a_new_one_in_front() -> None:
    old = Keyring({"old": b"o" * 32}).seal(b"value", b"row")
    new = Keyring({"new": b"n" * 32, "old": b"o" * 32})
    assert new.open(old, b"row") == b"value"
    assert b"new" in new.seal(b"value", b"row")


def test_equal_plain_texts_have_different_sealed_values(rig: Rig) -> None:
    assert keyring().seal(b"same", b"row") != keyring().seal(b"same", b"row")
    tenant = make_tenant()
    submit(tenant, **_request(tenant))
    assert b"geheim" not in bytes(Content.objects.get().sealed)
