"""The Python API: what is stored and when, in whose transaction, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from core.broker import queues
from core.models import Tenant
from core.security.crypto import keyed_digest
from core.security.hashing import canonical_json
from messaging.domain.errors import Conflict, Forbidden, InvalidInput, MessagingError, Unavailable
from messaging.domain.lifecycle import SendStatus
from messaging.domain.rails import Channel, Rail
from messaging.ledger import buckets
from messaging.models import Content, IdempotencyKey, RateLimitBucket, Send
from messaging.services import submit as submit_module
from messaging.services.submit import MAX_MANY, SendRequest, Submitted, submit, submit_many
from tests.messaging.tenant_rig import ensure_bucket, make_tenant

REQUEST: dict[str, Any] = {
    "to": "ada@example.org",
    "from_": "hello@shop.example",
    "subject": "Your code",
    "text": "123456",
}


@pytest.fixture
def tickets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Channel, Rail]]:
    """The tickets that were sent, in place of Redis."""
    sent: list[tuple[Channel, Rail]] = []
    monkeypatch.setattr(submit_module, "send_ticket", lambda channel, rail: sent.append((channel, rail)))
    return sent


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> Iterator[Tenant]:
    if "transactional_db" not in request.fixturenames:
        request.getfixturevalue("db")
    ensure_bucket()
    queues.breaker.reset()
    yield make_tenant()
    buckets.forget()


def stored() -> tuple[int, int, int]:
    return Send.objects.count(), Content.objects.count(), IdempotencyKey.objects.count()


def refused(call: Callable[[], object], kind: type[MessagingError], code: str, field: str | None = None) -> None:
    """`call` is refused with this code, and leaves nothing behind."""
    with pytest.raises(kind) as caught:
        call()
    assert (caught.value.code, caught.value.field) == (code, field)
    assert stored() == (0, 0, 0)


# The caller's transaction


def test_the_ticket_follows_the_commit(
    transactional_db: None, tenant: Tenant, tickets: list[tuple[Channel, Rail]]
) -> None:
    with transaction.atomic():
        submit(tenant, **REQUEST)
        assert tickets == []
    assert tickets == [(Channel.EMAIL, Rail.TRANSACTIONAL)]
    assert stored() == (1, 1, 0)


def test_a_rollback_leaves_nothing_and_no_ticket(
    transactional_db: None, tenant: Tenant, tickets: list[tuple[Channel, Rail]]
) -> None:
    with transaction.atomic():
        submit(tenant, **REQUEST, idempotency_key="order-1")
        transaction.set_rollback(True)
    assert stored() == (0, 0, 0)
    assert tickets == []
    assert not submit(tenant, **REQUEST, idempotency_key="order-1").replayed  # its key is free again


def test_a_refused_submit_leaves_the_callers_transaction_usable(
    transactional_db: None, tenant: Tenant, tickets: list[tuple[Channel, Rail]]
) -> None:
    submit(tenant, **REQUEST, idempotency_key="order-1")
    with transaction.atomic():
        for change, kind in [({"to": "nobody"}, InvalidInput), ({"text": "other"}, Conflict)]:
            with pytest.raises(kind):
                submit(tenant, **(REQUEST | change), idempotency_key="order-1")
        submit(tenant, **REQUEST)
    assert stored() == (2, 1, 1)
    assert len(tickets) == 2


def test_many_are_one_transaction_and_one_ticket_a_rail(
    transactional_db: None, tenant: Tenant, tickets: list[tuple[Channel, Rail]]
) -> None:
    requests = [
        REQUEST | {"to": f"user{i}@example.org", "category": ("product", "marketing", "transactional")[i % 3]}
        for i in range(300)
    ]
    answers = submit_many(tenant, requests)
    assert stored() == (300, 1, 0)
    assert sorted(tickets) == [(Channel.EMAIL, Rail.MARKETING), (Channel.EMAIL, Rail.TRANSACTIONAL)]
    assert [answer.category for answer in answers[:3]] == ["product", "marketing", "transactional"]
    assert len({answer.id for answer in answers}) == 300
    assert [answer.id for answer in answers] == sorted(answer.id for answer in answers)  # first come, first served


def test_many_are_all_or_nothing(tenant: Tenant) -> None:
    requests = [REQUEST | {"to": f"user{i}@example.org"} for i in range(10)]
    refused(
        lambda: submit_many(tenant, [*requests, REQUEST | {"to": "nobody"}]),
        InvalidInput,
        "invalid_address",
        "[10].to",
    )
    refused(
        lambda: submit_many(tenant, [*requests, REQUEST | {"from_": "x@other.example"}]),
        Forbidden,
        "sender_domain_not_allowed",
        "from",
    )


def test_many_may_be_none_and_not_too_many(tenant: Tenant) -> None:
    assert submit_many(tenant, []) == []
    refused(lambda: submit_many(tenant, [REQUEST] * (MAX_MANY + 1)), InvalidInput, "too_many_sends")


def test_a_mapping_is_checked_for_its_fields(tenant: Tenant) -> None:
    refused(lambda: submit_many(tenant, [REQUEST | {"attachments": []}]), InvalidInput, "unknown_field")
    refused(lambda: submit_many(tenant, [{"to": "a@example.org"}]), InvalidInput, "missing_field", "from_")


def test_what_is_scheduled_needs_no_ticket(
    transactional_db: None, tenant: Tenant, tickets: list[tuple[Channel, Rail]]
) -> None:
    answer = submit(tenant, **REQUEST, not_before=timezone.now() + timedelta(hours=1))
    assert answer.status is SendStatus.SCHEDULED
    assert tickets == []


def test_redis_away_is_no_error(transactional_db: None, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    import redis

    def away(*args: object, **kwargs: object) -> None:
        raise redis.ConnectionError("away")

    monkeypatch.setattr("core.broker.RailBroker.enqueue", away)
    assert submit(tenant, **REQUEST).status is SendStatus.QUEUED
    assert stored() == (1, 1, 0)


# Times


NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"not_before": "tomorrow"}, "invalid_time", "not_before"),
        ({"not_before": 4102444800}, "invalid_time", "not_before"),
        ({"not_before": True}, "invalid_time", "not_before"),
        ({"not_before": "2030-01-31T09:00:00"}, "invalid_time", "not_before"),  # no offset: whose nine o'clock?
        ({"not_before": "9999-12-31T23:59:59-12:00"}, "invalid_time", "not_before"),
        ({"not_before": NOW + timedelta(days=366)}, "too_far_ahead", "not_before"),
        ({"expires_at": NOW - timedelta(seconds=1)}, "expires_too_early", "expires_at"),
        (
            {"not_before": NOW + timedelta(hours=2), "expires_at": NOW + timedelta(hours=1)},
            "expires_too_early",
            "expires_at",
        ),
        ({"expires_at": "0001-01-01T00:00:00+12:00"}, "invalid_time", "expires_at"),
        ({"expires_at": ["2030-01-01T00:00:00Z"]}, "invalid_time", "expires_at"),
    ],
)
def test_times_that_are_refused(tenant: Tenant, change: dict[str, Any], code: str, field: str) -> None:
    refused(lambda: submit(tenant, **(REQUEST | change)), InvalidInput, code, field)


def test_a_not_before_that_has_passed_is_due_now(tenant: Tenant) -> None:
    assert submit(tenant, **REQUEST, not_before="2020-01-01T00:00:00Z").status is SendStatus.QUEUED


# What can be sent, and by whom


@pytest.mark.parametrize("channel", ["sms", "push", "webhook", "fax", "", None, 7, ["email"], {"a": 1}])
def test_a_channel_without_a_provider_is_unknown(tenant: Tenant, channel: object) -> None:
    refused(lambda: submit(tenant, **REQUEST, channel=channel), InvalidInput, "unknown_channel", "channel")


@pytest.mark.parametrize("category", ["otp", "Marketing", "", None, 7, ["marketing"], {"a": 1}])
def test_unknown_categories(tenant: Tenant, category: object) -> None:
    refused(lambda: submit(tenant, **REQUEST, category=category), InvalidInput, "unknown_category", "category")


def test_without_a_global_bucket_nothing_is_taken(tenant: Tenant) -> None:
    RateLimitBucket.objects.filter(scope="global").delete()
    buckets.forget()
    with pytest.raises(Unavailable) as caught:
        submit(tenant, **REQUEST)
    assert (caught.value.code, caught.value.retry_after) == ("provider_without_bucket", 60)
    assert stored() == (0, 0, 0)


def test_a_tenant_that_is_switched_off(tenant: Tenant) -> None:
    tenant.active = False
    tenant.save()
    refused(lambda: submit(tenant, **REQUEST), Forbidden, "tenant_inactive")


@pytest.mark.parametrize("domain", ["other.example", "mail.shop.example", "example", "shop.example.other.example"])
def test_a_from_outside_the_sender_domains(tenant: Tenant, domain: str) -> None:
    make_tenant("other", "other.example")
    call = lambda: submit(tenant, **(REQUEST | {"from_": f"a@{domain}"}))  # noqa: E731
    if domain == "example":
        refused(call, InvalidInput, "invalid_address", "from")
    else:
        refused(call, Forbidden, "sender_domain_not_allowed", "from")


# Idempotency


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("to", ["{{v}}@x.example", "{{ v }}", "{% if a %}a@x.example", "Ada {{ n }} <ada@x.example>"])
def test_a_recipient_that_nobody_filled_in(tenant: Tenant, to: str, literal: bool) -> None:
    refused(
        lambda: submit(tenant, **REQUEST | {"to": to, "literal": literal}), InvalidInput, "liquid_not_allowed", "to"
    )


def test_one_brace_is_no_liquid(tenant: Tenant, tickets: list[tuple[Channel, Rail]]) -> None:
    submit(tenant, **REQUEST | {"to": "{a}@x.example"})
    assert stored()[0] == 1


def test_the_same_request_again_answers_what_was_answered(tenant: Tenant) -> None:
    first = submit(tenant, **REQUEST, idempotency_key="order-1")
    Send.objects.filter(pk=first.id).update(status="sent", accepted_at=timezone.now())
    again = submit(tenant, **REQUEST, idempotency_key="order-1")
    assert (first.replayed, again.replayed) == (False, True)
    assert again == first  # as it was answered then, not as it is now
    assert stored() == (1, 1, 1)


def test_the_same_key_for_something_else_is_a_conflict(tenant: Tenant) -> None:
    submit(tenant, **REQUEST, idempotency_key="order-1")
    for change in (
        {"to": "bob@example.org"},
        {"subject": "Other"},
        {"category": "product"},
        {"variables": {"a": 1}},
        {"literal": True},
        {"not_before": "2020-01-01T00:00:00Z"},
    ):
        with pytest.raises(Conflict) as caught:
            submit(tenant, **(REQUEST | change), idempotency_key="order-1")
        assert caught.value.code == "idempotency_key_reused"
    assert stored() == (1, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Tomorrow(SendRequest):
    """A request of a release that has one more field."""

    attachments: object = None


def test_a_field_that_is_added_changes_no_digest_of_those_who_do_not_give_it() -> None:
    values = REQUEST | {"not_before": NOW, "variables": {"a": 1}}
    assert _Tomorrow(**values).digest() == SendRequest(**values).digest()
    assert _Tomorrow(**values, attachments=["a"]).digest() != SendRequest(**values).digest()
    assert SendRequest(**values, channel="email", html=None).digest() == SendRequest(**values).digest()


def test_a_key_of_the_release_before_is_known_by_the_digest_that_it_has(tenant: Tenant) -> None:
    """That one covered all fields, given or not."""
    first = submit(tenant, **REQUEST, idempotency_key="order-1")
    absent = dict.fromkeys(("html", "reply_to", "headers", "variables", "not_before", "expires_at"))
    all_fields = {"category": "transactional", "channel": "email", "literal": False} | absent | REQUEST
    IdempotencyKey.objects.update(request_digest=keyed_digest(canonical_json(all_fields)))
    assert submit(tenant, **REQUEST, idempotency_key="order-1") == first
    with pytest.raises(Conflict):
        submit(tenant, **REQUEST | {"subject": "Other"}, idempotency_key="order-1")
    assert stored() == (1, 1, 1)


def test_equal_requests_are_equal_in_whatever_types_they_come(tenant: Tenant) -> None:
    submit(
        tenant, **REQUEST, headers={"X-A": "1", "X-B": "2"}, reply_to=["help@shop.example"], idempotency_key="order-1"
    )
    again = submit(
        tenant,
        **REQUEST,
        headers=MappingProxyType({"X-B": "2", "X-A": "1"}),
        reply_to=("help@shop.example",),
        idempotency_key="order-1",
    )
    assert again.replayed


def test_a_key_belongs_to_its_tenant(tenant: Tenant) -> None:
    other = make_tenant("other")
    first = submit(tenant, **REQUEST, idempotency_key="order-1")
    second = submit(other, **(REQUEST | {"text": "other"}), idempotency_key="order-1")
    assert not second.replayed
    assert first.id != second.id


def test_one_key_twice_in_one_call(tenant: Tenant) -> None:
    requests = [REQUEST | {"idempotency_key": "order-1"}] * 2
    refused(lambda: submit_many(tenant, requests), Conflict, "idempotency_key_twice")


def test_some_of_many_were_made_before(tenant: Tenant) -> None:
    def batch(*numbers: int) -> list[Submitted]:
        return submit_many(
            tenant, [REQUEST | {"to": f"user{i}@example.org", "idempotency_key": f"k{i}"} for i in numbers]
        )

    first = batch(3, 1)
    second = batch(0, 1, 2, 3)
    assert [answer.replayed for answer in second] == [False, True, False, True]
    assert (second[3], second[1]) == (first[0], first[1])
    assert Send.objects.count() == 4


@pytest.mark.parametrize("key", ["", "x" * 256, "schlüssel", "a\nb", "a\x00", 7, ["k"]])
def test_keys_that_are_none(tenant: Tenant, key: object) -> None:
    refused(
        lambda: submit(tenant, **REQUEST, idempotency_key=key),
        InvalidInput,
        "invalid_idempotency_key",
        "idempotency_key",
    )


def test_a_replay_comes_too_late_for_what_was_asked_and_is_still_answered(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that repeats itself after a lost answer must get that answer, even past `expires_at`."""
    request = REQUEST | {"expires_at": (timezone.now() + timedelta(minutes=1)).isoformat(), "idempotency_key": "k"}
    first = submit(tenant, **request)
    later = timezone.now() + timedelta(minutes=2)
    monkeypatch.setattr(submit_module.timezone, "now", lambda: later)
    assert submit(tenant, **request) == first
    with pytest.raises(InvalidInput, match="expires_at"):
        submit(tenant, **(request | {"idempotency_key": "k2"}))
    assert stored() == (1, 1, 1)


def race(count: int, call: Callable[[int], Submitted]) -> list[Submitted | MessagingError]:
    """`call` in `count` threads at once, each with a connection of its own."""
    barrier = threading.Barrier(count)

    def run(i: int) -> Submitted | MessagingError:
        try:
            connection.ensure_connection()
            barrier.wait(10)
            return call(i)
        except MessagingError as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_eight_threads_with_one_key_are_one_send(
    transactional_db: None, tenant: Tenant, tickets: list[tuple[Channel, Rail]]
) -> None:
    for n in range(5):
        answers = race(8, lambda i, n=n: submit(tenant, **REQUEST, idempotency_key=f"order-{n}"))  # type: ignore[misc]
        assert all(isinstance(answer, Submitted) for answer in answers)
        assert len({answer.id for answer in answers}) == 1  # type: ignore[union-attr]
        assert sorted(answer.replayed for answer in answers) == [False] + [True] * 7  # type: ignore[union-attr]
    assert stored() == (5, 1, 5)
    assert len(tickets) == 5


def test_eight_threads_with_one_key_and_eight_requests_are_one_send(transactional_db: None, tenant: Tenant) -> None:
    answers = race(8, lambda i: submit(tenant, **(REQUEST | {"text": str(i)}), idempotency_key="order-1"))
    won = [answer for answer in answers if isinstance(answer, Submitted)]
    assert len(won) == 1
    assert {error.code for error in answers if isinstance(error, MessagingError)} == {"idempotency_key_reused"}
    assert stored() == (1, 1, 1)


def test_the_twin_of_a_request_that_was_rolled_back_becomes_the_first(transactional_db: None, tenant: Tenant) -> None:
    def call(i: int) -> Submitted:
        with transaction.atomic():
            answer = submit(tenant, **REQUEST, idempotency_key="order-1")
            if not answer.replayed and next(tries) < 3:
                transaction.set_rollback(True)
        return answer

    tries = iter(range(100))
    answers = race(8, call)
    assert stored() == (1, 1, 1)
    kept = Send.objects.get().pk
    assert sum(answer.id == kept for answer in answers) == 5  # type: ignore[union-attr]


def test_overlapping_lists_in_opposite_orders_do_not_lock_each_other_up(transactional_db: None, tenant: Tenant) -> None:
    numbers = list(range(40))

    def call(i: int) -> Submitted:
        order = numbers if i % 2 else numbers[::-1]
        requests = [
            REQUEST | {"to": f"user{n}@example.org", "subject": f"Content {n}", "idempotency_key": f"k{n}"}
            for n in order
        ]
        return submit_many(tenant, requests)[0]

    answers = race(8, call)
    assert all(isinstance(answer, Submitted) for answer in answers)
    assert stored() == (40, 40, 40)


def test_equal_contents_are_stored_once_by_racing_threads(transactional_db: None, tenant: Tenant) -> None:
    def call(i: int) -> Submitted:
        subjects = [f"Subject {n}" for n in (range(20) if i % 2 else reversed(range(20)))]
        return submit_many(tenant, [REQUEST | {"subject": subject} for subject in subjects])[0]

    assert all(isinstance(answer, Submitted) for answer in race(8, call))
    assert stored() == (160, 20, 0)


def test_a_request_is_not_its_own_repr() -> None:
    """Nothing that logs a request object by accident may show what it holds."""
    assert "ada@example.org" not in repr(SendRequest(**REQUEST))
