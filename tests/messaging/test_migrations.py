"""What a release does to a ledger that is in use."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from django.contrib.postgres.operations import ValidateConstraint
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.state import StateApps
from django.utils import timezone

from core.security.ids import new_id
from devtools.stack import url_of
from messaging.domain.lifecycle import BlastState
from messaging.migrations._concurrently import AddIndexConcurrently, RemoveIndexConcurrently
from messaging.models import (
    Batch,
    Blast,
    BlastHint,
    DueLane,
    IdempotencyKey,
    RateLimitBucket,
    Send,
    SenderHold,
    TenantLane,
)

#: Tables with a few rows for each tenant at most.
SMALL = {"messaging_tenant_lanes"}
_INDEX = re.compile(r'CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)\S+ ON "?(\w+)')
_UNIQUE = re.compile(r'ALTER TABLE "?(\w+)"? ADD CONSTRAINT \S+ (?:UNIQUE|PRIMARY KEY|EXCLUDE) ?\(')
#: What a migration that is no one transaction may hold.
RESUMABLE = {AddIndexConcurrently, RemoveIndexConcurrently, ValidateConstraint}
TABLES = (
    "messaging_sends, messaging_blasts, messaging_batches, messaging_tenant_lanes, messaging_idempotency_keys,"
    " messaging_blast_rejects"
)
_NEW = re.compile(r'CREATE TABLE "?(\w+)')

pytestmark = pytest.mark.django_db(transaction=True)  # building beside writers is not done in one


def test_no_index_of_a_table_that_may_be_large_is_built_while_its_writers_wait() -> None:
    """After the first migration: that is an installation which sends."""
    loader = MigrationExecutor(connection).loader
    locking = {}
    plan = loader.graph.forwards_plan(*loader.graph.leaf_nodes("messaging"))
    for key in plan:
        if key[0] != "messaging" or key[1] == "0001_initial":
            continue
        migration = loader.get_migration(*key)
        state = loader.project_state(key, at_end=False)
        with connection.schema_editor(collect_sql=True, atomic=False) as editor:
            migration.apply(state, editor, collect_sql=True)
        sql = "\n".join(editor.collected_sql)
        built = {*_INDEX.findall(sql), *_UNIQUE.findall(sql)} - {*_NEW.findall(sql)} - SMALL
        if built:
            locking[key[1]] = built
    assert locking == {}


def test_the_models_are_what_the_migrations_make() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.fixture
def head() -> Iterator[None]:
    """Afterwards the database is as all other tests expect it."""
    yield
    migrate()


def migrate() -> None:
    call_command("migrate", verbosity=0)


def go_back(name: str) -> StateApps:
    """To the database as it was after a migration; returns the models of then."""
    MigrationExecutor(connection).migrate([("messaging", name)])
    loader = MigrationExecutor(connection).loader
    return cast("StateApps", loader.project_state([*loader.graph.leaf_nodes("core"), ("messaging", name)]).apps)


@contextmanager
def cut(name: str = "") -> Iterator[None]:
    """An index (`name`, else the first), built or dropped beside writers, waits for one that does not end; there it is cut."""
    with ExitStack() as writers:

        def impatient(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            if "INDEX CONCURRENTLY" not in str(sql) or name not in str(sql):
                return execute(sql, *rest)
            writer = writers.enter_context(psycopg.connect(url_of(connection.settings_dict)))
            writer.execute(f"LOCK TABLE {TABLES} IN ROW EXCLUSIVE MODE")
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = 1")
                try:
                    return execute(sql, *rest)
                finally:
                    cursor.execute("RESET lock_timeout")

        with connection.execute_wrapper(impatient), pytest.raises(OperationalError, match="lock timeout"):
            yield


def indexes(*, valid: bool = True) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexrelid::regclass::text FROM pg_index"
            " WHERE indexrelid::regclass::text LIKE 'messaging%%' AND indisvalid = %s",
            [valid],
        )
        return {name for (name,) in cursor.fetchall()}


def populate(apps: StateApps) -> dict[str, Any]:
    """Something of everything, as migration 0003, 0008 or 0014 knows it. Of each tenant the same."""
    models = {model.__name__: model for model in apps.get_models()}
    new = {name: model.objects.create for name, model in models.items()}
    lanes = any(field.name == "priority" for field in models["TenantLane"]._meta.get_fields())
    tenant = new["Tenant"](slug=f"tenant-{new_id()}", name="T")
    content = new["Content"](tenant=tenant, digest=new_id().bytes * 2, liquid=False, from_domain="t.org", sealed=b"x")
    of = {"tenant": tenant, "content": content, "channel": "email"}
    kinds = {"marketing": ("marketing", 2), "transactional": ("transactional", 0), "product": ("transactional", 1)}

    def kind(category: str) -> dict[str, Any]:
        return {"category": category, "rail": kinds[category][0], "priority": kinds[category][1]}

    def send(status: str, category: str = "transactional", **values: Any) -> UUID:
        pk = new_id()
        new["Send"](id=pk, status=status, fingerprint=pk.bytes, sealed=b"x", **of, **kind(category), **values)
        return pk

    blasts = {}
    for state in BlastState:
        over = {"finished_at": timezone.now()} if state is BlastState.FINISHED else {}
        blasts[state] = new["Blast"](state=state, **of, **kind("marketing"), **over)
        new["BlastReject"](blast=blasts[state], line=2, code="invalid", reason="r")
        for status in ("sent", "cancelled") if over else ("queued", "scheduled"):
            accepted = {"accepted_at": timezone.now()} if status == "sent" else {}
            send(status, "marketing", blast=blasts[state], **accepted)
    batch = new_id()
    bound = [send("sending", batch_id=batch), send("sending", batch_id=batch)]
    request = {"provider": "resend", "channel": "email", "rail": "transactional", "digest": b"d" * 32}
    new["Batch"](id=batch, state="claimed", send_ids=bound, rendered_at=timezone.now(), **request)
    send("queued"), send("queued"), send("scheduled", "product"), send("failed", "product"), send("expired")
    new["SenderDomain"](tenant=tenant, domain=f"{tenant.slug}.org")
    held = {"hold_code": "refused", "held_until": timezone.now()}
    new["TenantLane"](tenant=tenant, channel="email", rail="marketing", **({"priority": 2} if lanes else {}), **held)
    if "SenderHold" in new:
        new["SenderHold"](channel="email", domain=f"{tenant.slug}.org", **held)
    new["IdempotencyKey"](tenant=tenant, operation="sends", key="k", request_digest=b"r" * 32, answer={})
    return {"tenant": tenant.pk, "batch": batch, "blasts": blasts}


def test_what_is_no_one_transaction_is_indexes_and_can_be_run_again() -> None:
    """Else an interruption leaves the half of it behind, and the next `release` finds that there already."""
    loader = MigrationExecutor(connection).loader
    held = {
        key: {type(operation) for operation in migration.operations}
        for key, migration in loader.disk_migrations.items()
        if key[0] in ("core", "messaging") and not migration.atomic
    }
    del held["messaging", "0004_sends_listing"]  # what else it does is tried below
    assert held == {("messaging", "0015_indexes"): RESUMABLE}


@pytest.mark.usefixtures("head")
@pytest.mark.parametrize(
    ("before", "name"), [("0003_blast_counts", "0004_sends_listing"), ("0014_preparing", "0015_indexes")]
)
def test_an_interrupted_release_goes_on_where_it_was(before: str, name: str) -> None:
    """From its beginning: cut in the midst of each index, cut after it; and at last when all is done and nobody has noted it."""
    there = indexes()
    populate(go_back(before))
    loader = MigrationExecutor(connection).loader
    operations = loader.get_migration("messaging", name).operations
    states = [loader.project_state(("messaging", before))]
    for operation in operations:
        states.append(states[-1].clone())
        operation.state_forwards("messaging", states[-1])

    def run(count: int) -> None:
        with connection.schema_editor(atomic=False) as editor:
            for operation, state, after in zip(operations[:count], states, states[1:], strict=False):
                operation.database_forwards("messaging", editor, state, after)

    cuts = 0
    for count, operation in enumerate(operations, 1):
        if "Index" in type(operation).__name__ or "INDEX CONCURRENTLY" in str(getattr(operation, "sql", "")):
            with cut():
                run(count)
            assert len(indexes(valid=False)) == 1
            cuts += 1
        run(count)
        assert not indexes(valid=False)
    assert cuts == {"0004_sends_listing": 4, "0015_indexes": 10}[name]
    migrate()
    assert indexes() == there


@pytest.mark.usefixtures("head")
def test_a_ledger_in_use_is_what_it_was_after_the_release() -> None:
    """From the release before, in two goes: the first is cut while it builds an index."""
    rows = populate(go_back("0008_lanes_by_priority"))
    blasts = rows["blasts"]
    low = new_id()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE messaging_blasts SET has_due = true, low = %s WHERE id = %s", [low, blasts["running"].pk]
        )
    before = Counter(Send.objects.values_list("status", "blast__state"))
    with cut("messaging_sends_held"):
        migrate()
    assert indexes(valid=False) == {"messaging_sends_held"}
    migrate()

    assert not indexes(valid=False)
    assert Counter(Send.objects.values_list("status", "blast__state")) == before
    assert set(DueLane.objects.values_list("channel", "rail", "priority", "tenant_id")) == {
        ("email", "transactional", 0, rows["tenant"])
    }
    hint = BlastHint.objects.get()
    assert (hint.blast_id, hint.has_due, hint.low) == (blasts["running"].pk, True, low)
    assert set(Blast.objects.values_list("state", "reason")) == {(state.value, "") for state in BlastState}
    batch = Batch.objects.get(state="claimed")
    assert (batch.pk, batch.in_hand, batch.unanswered, len(batch.send_ids)) == (rows["batch"], None, 0, 2)
    assert set(TenantLane.objects.values_list("priority", "hold_code", "stalls")) == {(2, "refused", 0)}
    assert SenderHold.objects.get().written_at is not None
    key = IdempotencyKey.objects.get()
    assert (key.over, key.keep_until - timedelta(days=7) > timezone.now()) == (False, True)
    assert not RateLimitBucket.objects.filter(scope="tenant").exists()
    with connection.cursor() as cursor:
        cursor.execute("SELECT conname FROM pg_constraint WHERE NOT convalidated")
        assert cursor.fetchall() == []
