"""Jobs: what a lease, a fence and `done` say, in one process; `test_jobs_processes` kills and freezes workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import dramatiq
import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction
from redis import Redis

from core.broker import queues
from core.db.faults import is_transient
from core.jobs import leases
from core.jobs.leases import FencedOut, JobDone, JobRunning, hold, job
from core.models import ProcessedJob, Tenant
from devtools.stack import url_of

pytestmark = pytest.mark.django_db(transaction=True)


def _write(slug: str) -> None:
    Tenant.objects.create(slug=slug, name=slug)


def _write_and_fail() -> None:
    _write("a")
    raise LookupError


def _lapse() -> None:
    ProcessedJob.objects.update(lease_until="2000-01-01T00:00Z")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PATIENCE", 0.0)


def test_a_result_and_done_are_one_commit() -> None:
    with hold("work") as held, held.result():
        _write("a")
    assert ProcessedJob.objects.get().done_at is not None
    with pytest.raises(JobDone), hold("work"):
        raise AssertionError("held twice")
    _lapse()  # a lease says nothing of a job that is done
    with pytest.raises(JobDone), hold("work"):
        raise AssertionError("held twice")


def test_a_result_that_fails_is_not_stored_and_the_job_is_free_at_once() -> None:
    with pytest.raises(LookupError), hold("work") as held, held.result():
        _write_and_fail()
    assert not Tenant.objects.exists()
    with hold("work") as held:
        assert held.fence == 2


def test_a_block_that_leaves_no_result_frees_the_job() -> None:
    with hold("work"):
        pass
    with hold("work") as held, held.result():
        pass
    assert ProcessedJob.objects.get().done_at is not None


def test_a_running_job_is_not_taken_a_lapsed_one_is_under_a_higher_fence() -> None:
    with hold("work") as first:
        with pytest.raises(JobRunning), hold("work"):
            raise AssertionError("held twice")
        _lapse()
        with hold("work") as second:
            assert (first.fence, second.fence) == (1, 2)


def test_whoever_is_fenced_out_stores_nothing_and_moves_no_lease() -> None:
    with hold("work") as first:
        _lapse()
        with hold("work") as second:
            with pytest.raises(FencedOut), first.result():
                _write("first")
            with pytest.raises(FencedOut):
                first.extend(60)
            with second.result():
                _write("second")
        with pytest.raises(FencedOut), first.result():  # also when the other one is done
            _write("late")
    assert set(Tenant.objects.values_list("slug", flat=True)) == {"second"}


def test_a_fenced_out_worker_that_gives_up_does_not_free_the_other_s_lease() -> None:
    with hold("work") as first:
        _lapse()
        fence = leases.begin("work", 30)
    assert (first.fence, fence) == (1, 2)
    with pytest.raises(JobRunning), hold("work"):
        raise AssertionError("held twice")


def test_a_lease_that_is_extended_lasts() -> None:
    with hold("work", lease=0.0) as held:
        held.extend(60)
        with pytest.raises(JobRunning), hold("work"):
            raise AssertionError("held twice")


def test_nobody_waits_for_the_row_of_a_job_that_somebody_has_locked() -> None:
    """He writes its result, or did so when his host vanished."""
    with hold("work", lease=0.0), psycopg.connect(url_of(connection.settings_dict)) as other:
        other.execute("SELECT FROM core_processed_jobs FOR UPDATE")
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = 1")
        with pytest.raises(JobRunning), hold("work"):
            raise AssertionError("held twice")
        other.rollback()
        assert leases.begin("work", 30) == 2


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_a_key_has_1_to_200_characters(key: str) -> None:
    with pytest.raises(ValueError, match="1 to 200"), hold(key):
        raise AssertionError("held")


def test_a_transaction_that_stands_still_for_longer_than_its_lease_is_ended_by_the_server() -> None:
    with pytest.raises(Exception) as caught, hold("work", lease=0.05) as held, held.result():
        _write_and_stand_still()
    assert is_transient(caught.value)
    assert not Tenant.objects.exists()


def _write_and_stand_still() -> None:
    """Until another worker has taken the job over, and the server has ended this transaction."""
    _write("a")
    me = connection.connection.info.backend_pid
    with psycopg.connect(
        **{k: connection.settings_dict[v] or None for k, v in _CONNECT.items()}, autocommit=True
    ) as other:
        while other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [me]).fetchone() or not _taken_by_another(
            "work"
        ):
            other.execute("SELECT pg_sleep(0.01)")


_CONNECT = {"dbname": "NAME", "host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}


def _taken_by_another(key: str) -> bool:
    found: list[int | None] = []

    def take() -> None:
        found.append(leases.begin(key, 30))
        connections.close_all()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0] is not None


# ---------------------------------------------------------------------------------------------------- the decorator


def test_a_decorated_function_takes_effect_once_and_says_what_it_did() -> None:
    @job(key=lambda slug: f"write:{slug}")
    def write(slug: str) -> str:
        _write(slug)
        return slug

    assert [write("a"), write("a"), write("b")] == ["a", None, "b"]
    assert Tenant.objects.count() == 2


def test_the_work_is_one_transaction() -> None:
    @job(key=lambda: "write")
    def write() -> None:
        assert transaction.get_connection().in_atomic_block
        _write("a")
        raise LookupError

    with pytest.raises(LookupError):
        write()
    assert not Tenant.objects.exists()


def test_of_many_at_once_one_does_it_and_the_others_wait_for_it() -> None:
    done: list[str | None] = []

    @job(key=lambda: "write")
    def write() -> str:
        _write("a")
        return "did it"

    def call() -> None:
        try:
            done.append(write())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done, key=str) == [None] * 7 + ["did it"]


@pytest.mark.usefixtures("impatient")
def test_a_function_says_that_its_job_is_still_running() -> None:
    @job(key=lambda: "write")
    def write() -> None:
        _write("a")

    with hold("write"), pytest.raises(JobRunning):
        write()
    assert not Tenant.objects.exists()


def test_what_passes_is_tried_again_and_a_bug_is_not() -> None:
    calls = 0

    @job(key=lambda: "write")
    def write() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OperationalError("deadlock detected")
        if calls == 3:
            raise LookupError
        return calls

    assert write() == 2
    ProcessedJob.objects.all().delete()
    with pytest.raises(LookupError):
        write()
    assert calls == 3


@pytest.fixture
def actor() -> Iterator[dramatiq.Actor[[int, str], None]]:
    broker = dramatiq.get_broker()

    @job(key=lambda number, slug: f"test:{number}")
    @dramatiq.actor(actor_name="test_job", queue_name="tests.waiting")
    def test_job(number: int, slug: str) -> None:
        _write(slug)

    yield test_job
    del broker.actors["test_job"]


@pytest.mark.usefixtures("impatient")
def test_an_actor_s_duplicate_goes_to_the_end_of_the_queue_with_its_arguments(
    redis: Redis, actor: dramatiq.Actor[[int, str], None]
) -> None:
    with hold("test:7"):
        actor(7, slug="a")
    assert not Tenant.objects.exists()
    consumer = dramatiq.get_broker().consume("tests.waiting", prefetch=1, timeout=100)
    message = next(consumer)
    assert message is not None
    assert (message.actor_name, message.args, message.kwargs) == ("test_job", (7,), {"slug": "a"})
    actor(*message.args, **message.kwargs)
    consumer.ack(message)
    assert Tenant.objects.get().slug == "a"


@pytest.mark.usefixtures("impatient")
def test_with_redis_away_the_duplicate_stays_in_its_thread(
    redis: Redis, actor: dramatiq.Actor[[int, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is acknowledged when the actor returns, so it returns only once it is in the queue, or done."""
    refused = []

    def enqueue(*args: object, **kwargs: object) -> bool:
        refused.append(args)
        _lapse()
        return False

    monkeypatch.setattr(
        actor, "fn", job(key=lambda number, slug: f"test:{number}")._once(actor.fn.__wrapped__, enqueue)
    )
    with hold("test:7"):
        actor(7, "a")
    assert (refused, Tenant.objects.count()) == ([(7, "a")], 1)


def test_the_queue_takes_arguments(redis: Redis, actor: dramatiq.Actor[[int, str], None]) -> None:
    assert queues.enqueue("tests.waiting", "test_job", 1, slug="b")
    assert queues.depth("tests.waiting") == 1
