"""Every row of the outcome table, against the real ledger and a provider that answers so."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from core.governor.client import Event
from core.models import DeadLetter
from messaging.dispatch import outcomes, turn
from messaging.dispatch.outcomes import BOUND, FIRST, Disposition, Outcome, rule
from messaging.domain.lifecycle import BatchState, SendStatus
from messaging.domain.rails import Channel
from messaging.models import Send
from messaging.providers import registry
from messaging.providers.base import Confirmation, Verdict
from messaging.providers.resend.adapter import ResendAdapter
from tests.factories import make_tenant, status_of, statuses, submit_some
from tests.rig import Rig


def _attempts() -> list[int]:
    return sorted(Send.objects.values_list("attempts", flat=True))


def test_every_verdict_has_a_row_in_both_tables() -> None:
    assert set(FIRST) == set(BOUND) == set(Verdict)


@pytest.mark.parametrize("table", [FIRST, BOUND])
def test_what_an_answer_says_of_the_provider_does_not_depend_on_what_becomes_of_the_sends(
    table: dict[Verdict, Outcome],
) -> None:
    heard = {
        Verdict.ACCEPTED: Event.ACCEPTED,
        Verdict.RATE_LIMITED: Event.RATE_LIMITED,
        Verdict.QUOTA: Event.QUOTA,
        Verdict.CREDENTIAL: Event.CREDENTIAL,
        # It is there, and refuses.
        Verdict.REFUSED: Event.REFUSED,
        # It, or something in front of it, refuses.
        Verdict.SENDER_REFUSED: Event.FORBIDDEN,
        # It is there, and takes the key.
        Verdict.IN_PROGRESS: Event.ANSWERED,
        Verdict.MISCOUNTED: Event.ANSWERED,
        Verdict.KEY_CONFLICT: Event.ANSWERED,
        Verdict.NOT_FOUND: Event.ANSWERED,
        # Nobody was there, or fell silent.
        Verdict.NOT_SENT: Event.FAILED,
        Verdict.UNKNOWN: Event.FAILED,
    }
    assert {verdict: outcome.event for verdict, outcome in table.items()} == heard


@pytest.mark.parametrize("verdict", [v for v in Verdict if v not in (Verdict.ACCEPTED, Verdict.KEY_CONFLICT)])
def test_unknown_binds_whatever_comes_back_later(verdict: Verdict) -> None:
    outcome = rule(verdict, bound=True, confirmation=Confirmation.IDEMPOTENT)
    assert (outcome.disposition, outcome.state) == (Disposition.BOUND, BatchState.UNKNOWN)


@pytest.mark.parametrize(
    ("confirmation", "disposition"),
    [
        (Confirmation.IDEMPOTENT, Disposition.BOUND),
        (Confirmation.VERIFIABLE, Disposition.BOUND),
        (Confirmation.AT_MOST_ONCE, Disposition.AMBIGUOUS),
    ],
)
@pytest.mark.parametrize("bound", [False, True])
def test_an_unknown_answer_is_repeated_asked_for_or_ambiguous(
    confirmation: Confirmation, disposition: Disposition, bound: bool
) -> None:
    assert rule(Verdict.UNKNOWN, bound=bound, confirmation=confirmation).disposition is disposition


@pytest.mark.parametrize(("settled", "disposition"), [(False, Disposition.BOUND), (True, Disposition.BACK_OFF)])
def test_not_found_counts_after_the_settle_time(settled: bool, disposition: Disposition) -> None:
    outcome = rule(Verdict.NOT_FOUND, bound=True, confirmation=Confirmation.VERIFIABLE, settled=settled)
    assert outcome.disposition is disposition


@pytest.mark.parametrize("attempts", range(12))
def test_back_off_is_full_jitter_up_to_a_doubling_bound(attempts: int) -> None:
    bound = min(300.0, 2.0 ** (attempts + 1))
    assert [outcomes.back_off(attempts, 300.0, chance) for chance in (0.0, 0.5, 1.0)] == [0.2, bound / 2, bound]
    assert outcomes.back_off(attempts, 60.0, 1.0) == min(60.0, bound), "each provider has its longest"


def test_accepted(rig: Rig) -> None:
    sends = submit_some(make_tenant(), 3)
    recorded = rig.turn()
    assert recorded is not None
    assert set(recorded.accepted) == {s.id for s in sends}
    assert statuses() == {"sent": 3}
    assert rig.batch().state == BatchState.ACCEPTED
    assert sorted(rig.accepted_ids()) == sorted(str(s.id) for s in sends)
    assert set(Send.objects.values_list("provider_id", flat=True)) == {line["id"] for line in rig.sandbox.log()}


def test_accepted_in_part_fails_the_named_ones_with_a_dead_letter_each(rig: Rig) -> None:
    tenant = make_tenant()
    bad = submit_some(tenant, 1, to="somebody@example.com")[0]
    submit_some(tenant, 99)
    rig.turn()
    assert statuses() == {"sent": 99, "failed": 1}
    assert rig.batch().state == BatchState.PARTIAL
    letter = DeadLetter.objects.get()
    assert (letter.send_id, letter.tenant, letter.batch_id) == (bad.id, tenant, rig.batch().pk)
    assert "@" not in letter.detail


def test_counts_that_differ_are_asked_for_once_more_then_ambiguous(rig: Rig) -> None:
    submit_some(make_tenant(), 3)
    rig.sandbox.fault("too_few_ids", count=1, missing=1)
    rig.turn()
    assert (statuses(), rig.batch().state) == ({"sending": 3}, BatchState.UNKNOWN)
    rig.sandbox.fault("too_few_ids", count=1, missing=1)
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.batch().state) == ({"ambiguous": 3}, BatchState.AMBIGUOUS)
    assert not DeadLetter.objects.exists()


def test_counts_that_differ_once_are_cleared_up_by_the_replay(rig: Rig) -> None:
    submit_some(make_tenant(), 3)
    rig.sandbox.fault("too_few_ids", count=1, missing=1)
    rig.turn()
    rig.lapse_leases()
    rig.turn()
    assert statuses() == {"sent": 3}
    assert rig.sandbox.stats()["doubles"] == 0


@pytest.mark.parametrize("fault", [{"retry_after": 2}, {"retry_after": None}])
def test_429_drops_nothing_counts_no_attempt_and_blocks_everybody(rig: Rig, fault: dict[str, Any]) -> None:
    submit_some(make_tenant(), 3)
    rig.sandbox.fault("429", count=1, **fault)
    rig.turn()
    assert (statuses(), _attempts(), rig.batch().state) == ({"queued": 3}, [0, 0, 0], BatchState.RATE_LIMITED)
    assert float(rig.redis.hget(rig.governor.keys[0], "blocked")) > 0
    rig.unblock()
    rig.turn()
    assert (statuses(), _attempts()) == ({"sent": 3}, [1, 1, 1])


@pytest.mark.parametrize("fault", ["401", "403_key"])
def test_a_credential_failure_opens_the_circuit_and_nothing_is_lost(rig: Rig, fault: str) -> None:
    submit_some(make_tenant(), 3)
    rig.sandbox.fault(fault, count=1)
    rig.turn()
    assert (statuses(), _attempts(), rig.circuit()) == ({"queued": 3}, [0, 0, 0], "credential")
    # The tenant is not told that its own key were wrong.
    assert set(Send.objects.values_list("error_code", flat=True)) == {"provider_refuses_operator"}
    assert rig.batch().state == BatchState.CREDENTIAL
    rig.unblock()
    rig.turn()
    assert (statuses(), rig.circuit()) == ({"sent": 3}, "")


def test_not_sent_is_tried_again_later_and_counts_as_an_attempt(rig: Rig) -> None:
    submit_some(make_tenant(), 2)
    _point_at_a_closed_port()
    rig.turn()
    assert (statuses(), _attempts(), rig.batch().state) == ({"scheduled": 2}, [1, 1], BatchState.NOT_SENT)
    assert rig.sandbox.stats()["requests_received"] == 0


def test_attempts_exhausted_fail_with_a_dead_letter(rig: Rig) -> None:
    send = submit_some(make_tenant(), 1)[0]
    Send.objects.update(attempts=outcomes.MAX_ATTEMPTS - 1)
    _point_at_a_closed_port()
    rig.turn()
    assert statuses() == {"failed": 1}
    assert (DeadLetter.objects.get().send_id, DeadLetter.objects.get().reason) == (send.id, "attempts_exhausted")


def test_three_batches_not_sent_in_a_row_open_the_circuit_and_then_no_attempt_counts(rig: Rig) -> None:
    _point_at_a_closed_port()
    tenant = make_tenant()
    for expected in ("", "", "unreachable"):
        submit_some(tenant, 1)
        rig.turn()
        assert rig.circuit() == expected
    Send.objects.update(status=SendStatus.QUEUED, attempts=0)
    rig.unblock()
    rig.turn()
    assert (set(_attempts()), rig.circuit()) == ({0}, "unreachable")


def test_a_probe_is_told_of_when_its_request_leaves_and_no_other_request_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it may be in the hands of a worker that is frozen in its claim, and nobody waits long for that."""
    left: list[bytes | None] = []
    call = turn._call

    def watched(*arguments: Any) -> Any:
        left.append(rig.redis.hget(rig.governor.keys[0], "permit_left"))
        return call(*arguments)

    monkeypatch.setattr(turn, "_call", watched)
    _point_at_a_closed_port()
    for _ in range(3):
        submit_some(make_tenant(), 1)
        rig.turn()
    assert rig.circuit() == "unreachable"
    assert not any(left)
    submit_some(make_tenant(), 1)
    rig.unblock()
    rig.turn()
    assert left[3:] == [b"1"]


@pytest.mark.parametrize(
    ("fault", "opens"),
    [
        ("500", True),
        ("drop_before", True),
        ("cut_body", True),
        ("concurrent_409", False),
        ("too_few_ids", False),
        ("429", False),
        ("422", False),
        ("403_domain", False),
    ],
)
def test_what_opens_the_circuit_after_three_tenants_batches_and_what_does_not(
    rig: Rig, fault: str, opens: bool
) -> None:
    tenants = [make_tenant(name) for name in "abc"]
    rig.sandbox.fault(fault, **({"domain": "a.org"} if fault == "403_domain" else {}))
    for tenant in tenants[:1] * 3 if fault == "403_domain" else tenants:
        submit_some(tenant, 1)
        rig.turn()
        rig.redis.hset(rig.governor.keys[0], mapping={"blocked": "0", "tokens": "1", "at": "0"})
    assert (rig.circuit() == "unreachable") is opens


def test_one_tenant_s_batches_do_not_open_it_until_there_are_eight(rig: Rig) -> None:
    """On a quiet system: nobody else's acceptance says that it is the contents, and a stranger's code goes all the same."""
    tenant, stranger = make_tenant("a"), make_tenant("b")
    fault = rig.sandbox.fault("500")
    for expected in [""] * 7:
        submit_some(tenant, 1)
        rig.turn()
        assert rig.circuit() == expected
    rig.sandbox.clear_fault(fault)
    send = submit_some(stranger, 1)[0]
    rig.turn()
    assert status_of(send.id) == "sent"
    rig.sandbox.fault("500")
    for expected in [*[""] * 7, "unreachable"]:
        submit_some(tenant, 1)
        rig.turn()
        assert rig.circuit() == expected


def _point_at_a_closed_port() -> None:
    registry.adapters()[Channel.EMAIL] = ResendAdapter(api_key="re_sandbox", base_url="http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("fault", "values"),
    [
        ("500", {}),
        ("500", {"accept": True}),
        ("503", {}),
        ("cut_body", {}),
        ("drop_after_accept", {}),
        ("drop_after_accept", {"reset": True}),
        ("drop_before", {}),
        ("concurrent_409", {}),
    ],
)
def test_unknown_stays_bound_and_is_repeated_with_the_same_bytes_and_key(
    rig: Rig, fault: str, values: dict[str, Any]
) -> None:
    submit_some(make_tenant(), 3)
    rig.sandbox.fault(fault, count=1, **values)
    rig.turn()
    first = rig.batch()
    assert (statuses(), first.state) == ({"sending": 3}, BatchState.UNKNOWN)
    assert rig.turn() is None  # not before its time
    rig.lapse_leases()
    rig.turn()
    again = rig.batch()
    assert (statuses(), again.state, again.attempts) == ({"sent": 3}, BatchState.ACCEPTED, 2)
    assert (again.digest, again.idempotency_key, again.send_ids) == (
        first.digest,
        first.idempotency_key,
        first.send_ids,
    )
    assert (rig.sandbox.stats()["emails_accepted"], rig.sandbox.stats()["doubles"]) == (3, 0)


@pytest.mark.parametrize("fault", ["429", "401", "422", "500", "concurrent_409", "403_key"])
def test_a_bound_batch_leaves_its_sends_bound_whatever_is_answered(rig: Rig, fault: str) -> None:
    submit_some(make_tenant(), 3)
    rig.sandbox.fault("drop_after_accept", count=1)
    rig.turn()
    rig.sandbox.fault(fault, count=1)
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.batch().state) == ({"sending": 3}, BatchState.UNKNOWN)
    rig.lapse_leases()
    rig.unblock()
    rig.turn()
    assert (statuses(), rig.sandbox.stats()["doubles"]) == ({"sent": 3}, 0)


def test_a_key_used_with_another_payload_is_ambiguous_and_never_gets_a_new_key(rig: Rig) -> None:
    submit_some(make_tenant(), 2)
    rig.sandbox.fault("drop_after_accept", count=1)
    rig.turn()
    # The provider remembers other bytes under this key.
    batch = rig.batch()
    rig.sandbox.reset()
    requests.post(
        f"{rig.sandbox.url}/emails/batch",
        headers={"Authorization": "Bearer re_sandbox", "User-Agent": "t", "Idempotency-Key": batch.idempotency_key},
        json=[{"from": "a@b.org", "to": ["c@d.org"], "subject": "x", "text": "y"}],
        timeout=5,
    ).raise_for_status()
    rig.lapse_leases()
    rig.turn()
    assert (statuses(), rig.batch().state) == ({"ambiguous": 2}, BatchState.AMBIGUOUS)
    assert len(rig.batches()) == 1
