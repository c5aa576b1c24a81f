"""`manage.py redrive`: looks unless told otherwise, says what it did and what it left alone, teaches in its help."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command, load_command_class
from redis import Redis

from core.models import DeadLetter, Tenant
from core.security.ids import new_id
from messaging.models import Redrive, Send
from messaging.services.redrive import Verdict
from tests.factories import make_tenant, statuses, submit_some
from tests.rig import seed_buckets

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tenant(redis: Redis, transactional_db: None) -> Tenant:
    seed_buckets()
    return make_tenant("acme")


@pytest.fixture
def failed(tenant: Tenant) -> list[UUID]:
    ids = [s.id for s in submit_some(tenant, 3)]
    Send.objects.update(status="failed", error_code="refused")
    for pk in ids:
        DeadLetter.objects.create(channel="email", send_id=pk, tenant=tenant, reason="refused")
    return ids


def _run(*arguments: Any) -> str:
    out = io.StringIO()
    call_command("redrive", *map(str, arguments), stdout=out)
    return out.getvalue()


def test_without_yes_it_only_says_what_it_would_do(failed: list[UUID]) -> None:
    assert "3 sends would be sent again; nothing was changed. Do it with --yes." in _run("--reason", "refused")
    assert statuses() == {"failed": 3}


def test_with_yes_it_does_it_once_and_keeps_who_it_was(failed: list[UUID]) -> None:
    assert "3 sends queued again." in _run("--reason", "refused", "--by", "ada", "--yes")
    assert "0 sends queued again." in _run("--reason", "refused", "--yes")
    assert statuses() == {"queued": 3}
    assert set(Redrive.objects.values_list("by", flat=True)) == {"ada"}


def test_ids_come_as_arguments_from_a_file_or_from_standard_input(
    failed: list[UUID], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ids"
    path.write_text(f"{failed[1]}\n\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{failed[2]}\n"))
    for arguments in ((failed[0],), ("--ids", path), ("--ids", "-")):
        assert "1 send queued again." in _run(*arguments, "--yes")
    assert statuses() == {"queued": 3}


def test_it_says_what_it_left_alone_and_why(failed: list[UUID]) -> None:
    Send.objects.filter(pk=failed[0]).update(status="ambiguous", batch_id=failed[0])
    Send.objects.filter(pk=failed[1]).update(status="cancelled")
    told = _run(*failed, new_id(), "--yes")
    assert "1 send queued again." in told
    assert (
        f"1 ambiguous: they may have been sent; to send them again say --accept-duplicates (such as {failed[0]})"
        in told
    )
    assert f"1 cancelled, or their blast was: not sent again (such as {failed[1]})" in told
    assert "1 unknown" in told


def test_an_ambiguous_send_takes_two_words_and_a_name(failed: list[UUID]) -> None:
    Send.objects.update(status="ambiguous", batch_id=failed[0])
    assert "0 sends queued again." in _run(failed[0], "--yes")
    with pytest.raises(CommandError, match="Say who decides"):
        _run(failed[0], "--yes", "--accept-duplicates", "--by", " ")
    assert "1 send queued again." in _run(failed[0], "--yes", "--accept-duplicates", "--by", "ada")
    assert Redrive.objects.get().was == "ambiguous"


def test_a_tenant_s_name_narrows_it_down(failed: list[UUID]) -> None:
    make_tenant("other")
    assert "0 sends queued again" in _run("--reason", "refused", "--tenant", "other", "--yes")
    assert "3 sends queued again" in _run("--reason", "refused", "--tenant", "acme", "--yes")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "Name what to redrive"),
        (["--reason", "x", "--blast", new_id()], "Name what to redrive"),
        (["--blast", new_id()], "no such blast"),
        (["--tenant", "nobody", "--reason", "x"], "no tenant with this slug"),
        (["ada@home.org"], "not the id of a send"),
        (["--ids", "/no/such/file"], "cannot be read"),
        ([new_id(), "--ids", "/no/such/file"], "not both"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tenant: Tenant, arguments: list[Any], word: str) -> None:
    with pytest.raises(CommandError, match=word) as caught:
        _run(*arguments)
    assert "ada@" not in str(caught.value)


def test_the_help_teaches_and_every_refusal_has_words() -> None:
    command = load_command_class("messaging", "redrive")
    text = command.create_parser("manage.py", "redrive").format_help()
    for word in ("AMBIGUOUS", "--accept-duplicates", "examples:", "--yes", "Repeating the command is safe"):
        assert word in text
    from messaging.management.commands.redrive import _WORDS

    assert set(_WORDS) == set(Verdict) - {Verdict.MAY}
