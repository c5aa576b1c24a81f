"""`create_tenant`: from nothing to a send over HTTP."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from core.models import ApiKey, Tenant
from messaging.ledger import buckets
from messaging.models import SenderDomain
from tests.messaging.tenant_rig import BODY, ensure_bucket

pytestmark = pytest.mark.django_db


def create(*arguments: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("create_tenant", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_its_key_can_send_at_once() -> None:
    ensure_bucket()
    out, err = create("shop", "--name", "The Shop", "--domain", "shop.example", "--domain", "Mail.Shop.Example")
    key = out.strip()  # stdout is the key and nothing else
    assert key.startswith("drk_")
    assert key not in err
    assert "curl" in err
    answer = Client().post(
        "/v1/messaging/sends",
        BODY | {"from": "x@mail.shop.example"},
        content_type="application/json",
        headers={"Authorization": f"Bearer {key}"},
    )
    assert answer.status_code == 202
    assert Tenant.objects.get().name == "The Shop"
    assert ApiKey.objects.get().name == "first key"
    assert [str(domain) for domain in SenderDomain.objects.all()] == ["mail.shop.example", "shop.example"]
    buckets.forget()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Shop!", "--name", "x", "--domain", "shop.example"], "a–z"),
        (["shop", "--name", "", "--domain", "shop.example"], "tenant"),
        (["shop", "--name", "x", "--domain", "localhost"], "--domain localhost"),
        (["shop", "--name", "x", "--domain", "ok.example", "--domain", "a@b.example"], "--domain a@b.example"),
        (["shop", "--name", "x", "--domain", "shop.example", "--key-name", "x" * 101], "--key-name"),
        (["shop", "--name", "x", "--domain", "shop.example", "--key-name", ""], "--key-name"),
        (["shop", "--name", "x"], "--domain"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_made(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        create(*arguments)
    assert (Tenant.objects.count(), SenderDomain.objects.count(), ApiKey.objects.count()) == (0, 0, 0)


def test_a_tenant_is_made_once() -> None:
    create("shop", "--name", "x", "--domain", "shop.example")
    with pytest.raises(CommandError, match="already"):
        create("shop", "--name", "x", "--domain", "shop.example")
    assert ApiKey.objects.count() == 1


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("create_tenant", "--help")
    text = capsys.readouterr().out
    assert 'python manage.py create_tenant shop --name "The Shop" --domain shop.example' in text
    assert "first key" in text
