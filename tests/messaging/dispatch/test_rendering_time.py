"""Rendering and compiling take their time from the tenant whose contents they are, and never from a token."""

from __future__ import annotations

import time
from typing import Any

import pytest

from messaging.dispatch import prefetch, preparing, turn
from messaging.dispatch.prefetch import Prefetch
from messaging.dispatch.scheduler import memory_of
from messaging.domain.rails import Channel, Rail
from messaging.ledger import contents
from messaging.ledger.candidates import Lane
from messaging.ledger.contents import kept
from messaging.models import Send, SenderDomain, TenantLane
from messaging.providers.registry import adapters
from messaging.services import sender_domains
from tests.factories import make_blast, make_tenant, status_of, statuses, submit_some
from tests.rig import Rig

SLOW = 0.038


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Legal mails take 38 ms each to render, on any machine."""
    real = preparing.render

    def render(send: Any, content: Any, now: Any) -> Any:
        if content.document.subject == "Legal":
            until = time.thread_time() + SLOW
            while time.thread_time() < until:
                pass
        return real(send, content, now)

    monkeypatch.setattr(preparing, "render", render)


def _codes(count: int) -> list[Any]:
    return submit_some(make_tenant(), count)


def test_slow_contents_of_one_tenant_leave_anothers_codes_their_share_of_the_first_batches(
    rig: Rig, slow: None
) -> None:
    submit_some(make_tenant(), 40, subject="Legal")
    codes = _codes(100)
    requests = 0
    while any(status_of(code.id) != "sent" for code in codes):
        rig.turn()
        requests += 1
    assert requests <= 3  # alone: 1
    rig.drain()
    assert statuses() == {"sent": 140}


def test_slow_contents_go_apart_in_a_turn_of_their_own_as_one_tenant_among_all(rig: Rig, slow: None) -> None:
    legal = make_tenant()
    submit_some(legal, 12, subject="Legal")
    others = [make_tenant() for _ in range(4)]
    _codes(1)
    rig.turn()  # now it is known
    for _ in range(8):
        for other in others:
            submit_some(other, 30)
    for _ in range(10):
        rig.turn()
    mixed = [{send.tenant_id for send in _sends(batch)} for batch in rig.batches()[1:] if batch.state == "accepted"]
    assert all(tenants == {legal.pk} or legal.pk not in tenants for tenants in mixed)
    assert 1 <= sum(tenants == {legal.pk} for tenants in mixed) <= 4


def _sends(batch: Any) -> Any:
    return Send.objects.filter(pk__in=batch.send_ids)


def test_a_worker_just_started_compiles_before_it_takes_a_token(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 tenants with large templates are one request, as in a worker that knows them."""
    for i in range(60):
        submit_some(make_tenant(), 1, category="product", text=f"{i} {{{{ code }}}} {'terms ' * 300}" * 10)
    kept.clear()
    order: list[str] = []
    line = turn.Line(_adapter(), turn.governor_of("resend"), Channel.EMAIL, Rail.TRANSACTIONAL)
    acquire = line.governor.acquire
    monkeypatch.setattr(line.governor, "acquire", lambda **named: (order.append("token"), acquire(**named))[1])
    compiled = contents._compile
    monkeypatch.setattr(contents, "_compile", lambda row: (order.append("compile"), compiled(row))[1])
    assert len(rig.drain()) == 1
    assert order[:61] == ["compile"] * 60 + ["token"]
    assert statuses() == {"sent": 60}


def test_large_templates_that_fit_in_no_cache_keep_no_stranger_of_their_batch(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is compiled for a batch that has used up its time: it would outlive its lease, again and again."""
    monkeypatch.setattr(contents, "KEPT_BYTES", 1)
    monkeypatch.setattr(prefetch, "MOST_BYTES", 1)
    legal = make_tenant()
    for i in range(30):
        submit_some(legal, 1, subject=f"Terms {i}", text=f"{i} " + "{{ code }} " * 1_500)
    code = submit_some(make_tenant(), 1)[0]
    compiled: list[Any] = []
    real = contents._compile
    monkeypatch.setattr(contents, "_compile", lambda row: (compiled.append(row.pk), real(row))[1])
    rig.turn()
    rig.turn()
    assert status_of(code.id) == "sent"
    assert len(compiled) < 15  # of 31, in two looks and two batches
    rig.drain(at_most=200)
    assert statuses() == {"sent": 31}


def test_new_work_does_not_wait_for_the_many_templates_of_one_tenant(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = make_tenant()
    for i in range(20):
        submit_some(tenant, 1, text=f"{i} {{{{ code }}}}")
    kept.clear()
    monkeypatch.setattr(prefetch, "PATIENCE", -1.0)
    lane = Lane(tenant.pk, 0, None, 20, alone=False)
    ready = Prefetch().warm(Channel.EMAIL, Rail.TRANSACTIONAL, [lane], 100, lambda: True)
    assert [found.sends for found in ready] == [1]
    assert Prefetch().warm(Channel.EMAIL, Rail.TRANSACTIONAL, [lane], 100, lambda: False) == [lane]


def test_new_work_does_not_wait_for_the_templates_of_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = [make_tenant() for _ in range(20)]
    for i, tenant in enumerate(tenants):
        submit_some(tenant, 1, category="product", text=f"{i} {{{{ code }}}}")
    kept.clear()
    monkeypatch.setattr(prefetch, "PATIENCE", -1.0)
    lanes = [Lane(tenant.pk, 1, None, 1, alone=False) for tenant in tenants]
    ready = Prefetch().warm(Channel.EMAIL, Rail.TRANSACTIONAL, lanes, 100, lambda: True)
    assert ready == lanes[:1]
    kept.clear()
    assert Prefetch().warm(Channel.EMAIL, Rail.TRANSACTIONAL, lanes, 100, lambda: False) == lanes


def test_a_blast_whose_content_is_known_costs_no_query_to_prefetch(rig: Rig, django_assert_num_queries: Any) -> None:
    blast = make_blast(make_tenant(), 3)
    lanes = [Lane(blast.tenant_id, 2, blast.pk, 3, alone=False)]
    found = Prefetch()
    found.warm(Channel.EMAIL, Rail.MARKETING, lanes, 100, lambda: False)
    with django_assert_num_queries(0):
        assert found.warm(Channel.EMAIL, Rail.MARKETING, lanes, 100, lambda: False) == lanes


def test_a_sender_domain_that_was_taken_away_sends_nothing_more(rig: Rig) -> None:
    tenant = make_tenant()
    single = submit_some(tenant, 2)
    submit_some(make_tenant(), 2)
    blast = make_blast(make_tenant(), 2)
    SenderDomain.objects.filter(tenant__in=[tenant, blast.tenant]).delete()
    sender_domains.forget()
    rig.drain()
    rig.drain(Rail.MARKETING)
    assert [status_of(send.id) for send in single] == ["failed", "failed"]
    assert (statuses(blast=blast), statuses(status="sent")) == ({"queued": 2}, {"sent": 2})
    blast.refresh_from_db()
    assert blast.hold_code == "sender_domain_not_allowed"
    assert not TenantLane.objects.exists()


def test_the_next_batch_is_claimed_while_one_is_rendered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lead is released once the sends are bound: whoever comes meanwhile leads."""
    submit_some(make_tenant(), 1)
    real, met = preparing.render, []

    def render(*args: Any) -> Any:
        if not met:
            met.append(True)
            submit_some(make_tenant(), 1)
            assert rig.turn() is not None
        return real(*args)

    monkeypatch.setattr(preparing, "render", render)
    rig.turn()
    assert statuses() == {"sent": 2}


def _adapter() -> Any:
    return adapters()[Channel.EMAIL]


def test_memory_of_slow_lanes_is_bounded_in_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of("resend", Channel.EMAIL, Rail.TRANSACTIONAL)
    lane = Lane(1, 0, None, 1, alone=False).key
    memory.slow([lane])
    assert memory.slow_now() == {lane}
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31)
    assert memory.slow_now() == frozenset()
