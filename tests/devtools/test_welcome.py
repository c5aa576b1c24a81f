"""What `make dev` says, and the login that it makes once."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from honcho.environ import parse_procfile

ROOT = Path(__file__).resolve().parents[2]


def welcome(settings: object, *arguments: str, debug: bool = True) -> str:
    settings.DEBUG = debug  # type: ignore[attr-defined]
    out = io.StringIO()
    call_command("welcome", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_a_login_is_made_once_and_works(settings: object) -> None:
    first = welcome(settings)
    password = re.search(r"http://127.0.0.1:8000/admin/ +user admin, password (\S+)", first)
    assert password
    user = authenticate(username="admin", password=password[1])
    assert user
    assert user.is_superuser  # type: ignore[union-attr,attr-defined]
    again = welcome(settings)
    assert "user admin, password" not in again
    assert User.objects.count() == 1
    assert "http://127.0.0.1:8025/_sandbox/inbox" in again


@pytest.mark.django_db
@pytest.mark.parametrize("there", [{"username": "root", "is_superuser": True}, {"username": "admin"}])
def test_who_is_there_stays(settings: object, there: dict[str, object]) -> None:
    User.objects.create(**there)
    assert "user admin, password" not in welcome(settings)
    assert User.objects.count() == 1


@pytest.mark.django_db
def test_never_in_production(settings: object) -> None:
    with pytest.raises(CommandError, match="for development"):
        welcome(settings, debug=False)
    assert not User.objects.exists()


def test_it_names_the_ports_that_make_dev_uses(settings: object) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "python manage.py welcome && exec honcho start --procfile Procfile.dev --port 8000" in makefile
    assert "--port 8025" in parse_procfile((ROOT / "Procfile.dev").read_text()).processes["sandbox"]
