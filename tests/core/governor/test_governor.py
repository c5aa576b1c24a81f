"""The script does what the specification says: random calls, compared with the model at every step."""

from dataclasses import replace
from typing import Any

import pytest
import redis as redis_module
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from core.governor.client import Bucket, Decision, Event, Limits, Refusal, Want
from tests.core.governor.calls import Acquire, Settle
from tests.core.governor.model import Model
from tests.core.governor.rig import NEAR, TimedGovernor, assert_same_state

REQUESTS = (
    Bucket(1.2, 9.8),
    Bucket(3, 9.8, 1),
    Bucket(2, 0.5, 1),
    Bucket(21, 980, 0.5),
    Bucket(1, 10),
)
QUOTAS = (None, None, Bucket(100, 0.5), Bucket(250, 20, 50), Bucket(7, 0.01, 2))
LIMITS = st.builds(Limits, st.sampled_from(REQUESTS), st.sampled_from(QUOTAS))
TENANTS: tuple[tuple[Bucket, ...], ...] = (
    (Bucket(1000, 1000),),
    (Bucket(1000, 1000), Bucket(3, 0.7), Bucket(20, 5, 4), Bucket(2.5, 0.001, 1.25)),
    (Bucket(2, 1.5), Bucket(1, 0.3)),
)
RAILS = st.sampled_from(["transactional", "marketing"])
#: Few batches, so that the same ones come again.
BATCHES = st.sampled_from([f"batch-{n}" for n in range(10)])
#: Failures are what takes several calls in a row to matter.
EVENTS = st.sampled_from([Event.FAILED, Event.REFUSED, Event.FORBIDDEN, *Event])
NAMES = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True).map(tuple)
FAILED_FOR = st.sampled_from([(), ("1",), ("2",), ("1", "2"), ("2", "3"), ("4",)])
REFUSALS = st.builds(Refusal, st.sampled_from(["invalid", "invalid", "too_large"]), NAMES)
STEPS = st.one_of(
    st.just(0),
    st.integers(1, 2_000),
    st.integers(1, 300_000),
    st.integers(1, 3_000_000),
    st.integers(1, 600_000_000),
)
SMALL_WANTS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 2), st.integers(1, 8)),
    min_size=1,
    max_size=6,
    unique_by=lambda want: want[:2],
)


class GovernorMachine(RuleBasedStateMachine):
    client: redis_module.Redis
    limits: Limits
    buckets: tuple[Bucket, ...]
    by_rail: bool  # some tenants' buckets are for one rail each

    def __init__(self) -> None:
        super().__init__()
        self.client.flushdb()
        self.governor, self.model = TimedGovernor(self.client), Model()
        self.granted: list[tuple[Acquire, Decision]] = []
        self.calls = 0
        self.refused: tuple[Acquire, Decision] | None = None

    @rule(step=STEPS)
    def time_passes(self, step: int) -> None:
        self.governor.us += step

    @precondition(lambda self: self.refused)
    @rule()
    def wait_exactly_as_told(self) -> None:
        assert self.refused
        call, decision = self.refused
        # Two waits with one reason may follow each other: an open circuit's permit and next probe, a block that the provider's
        # quota answer began and the quota of our own count, and that the transactional rail waits for it.
        twice = {"circuit", "quota", self.model.blocked_why if self.model.blocked > self.governor.now else ""}
        self.governor.advance(decision.wait)
        reason = self.acquire(call).reason
        assert reason != decision.reason or reason in twice

    @initialize(limits=LIMITS, buckets=st.sampled_from(TENANTS), by_rail=st.booleans())
    def configure(self, limits: Limits, buckets: tuple[Bucket, ...], by_rail: bool) -> None:
        self.limits, self.buckets, self.by_rail = limits, buckets, by_rail

    @rule(limits=LIMITS, buckets=st.sampled_from(TENANTS), by_rail=st.booleans())
    def reconfigure(self, limits: Limits, buckets: tuple[Bucket, ...], by_rail: bool) -> None:
        self.configure(limits, buckets, by_rail)

    @rule(
        rail=RAILS,
        wants=SMALL_WANTS,
        max_batch=st.sampled_from([1, 5, 10, 100]),
        retry=st.booleans(),
        probe_batch=st.none() | st.just(1),
    )
    def ask(
        self, rail: str, wants: list[tuple[int, int, int]], max_batch: int, retry: bool, probe_batch: int | None
    ) -> None:
        self.ask_for(rail, wants=self.wants(rail, wants), max_batch=max_batch, retry=retry, probe_batch=probe_batch)

    @rule(
        rail=RAILS,
        first=st.integers(1, 120),
        count=st.integers(1, 150),
        sends=st.lists(st.integers(1, 150), min_size=1, max_size=4),
        priorities=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    )
    def ask_for_many(self, rail: str, first: int, count: int, sends: list[int], priorities: list[int]) -> None:
        wants = [(first + n, priorities[n % len(priorities)], sends[n % len(sends)]) for n in range(count)]
        self.ask_for(rail, wants=self.wants(rail, wants))

    @rule(rail=RAILS, batch=BATCHES, count=st.integers(1, 4))
    def ask_for_replays(self, rail: str, batch: str, count: int) -> None:
        """Many, so that the retry budget is used up."""
        for _ in range(count):
            self.ask_for_a_replay(rail, batch)
            self.governor.us += 100_000

    def ask_for_a_replay(self, rail: str, batch: str) -> None:
        self.ask_for(rail, batch=batch, replay=True, retry=True)

    @precondition(lambda self: self.granted)
    @rule(
        which=st.integers(-3, 30),
        batch=st.none() | BATCHES,
        event=EVENTS,
        unused=st.booleans(),
        given_back=st.sampled_from([0, 0.5, 1]),
        retry_after=st.none() | st.sampled_from([0, 0.25, 1, 3.5, 90_000]),
        remaining=st.none() | st.integers(0, 12),
        jitter=st.floats(0, 1).map(lambda value: round(value, 3)),
        old_limits=st.booleans(),
        refused=st.none() | REFUSALS,
        failed_for=FAILED_FOR,
    )
    def settle(
        self,
        which: int,
        batch: str | None,
        event: Event,
        unused: bool,
        given_back: float,
        retry_after: float | None,
        remaining: int | None,
        jitter: float,
        old_limits: bool,
        refused: Refusal | None,
        failed_for: tuple[str, ...],
    ) -> None:
        call, decision = self.granted[which % len(self.granted)]
        back = tuple(
            (want.tenant, round(share * given_back), want.bucket)
            for want, share in zip(call.wants, decision.shares, strict=True)
            if round(share * given_back)
        )
        self.governor.jitter = jitter
        settle = Settle(
            grant=call.grant,
            batch=batch or call.batch,
            event=event,
            limits=call.limits if old_limits else self.limits,
            rail=call.rail,
            retry=call.retry,
            refused=refused,
            failed_for=failed_for,
            epoch=decision.epoch,
            unused=unused,
            back=back,
            retry_after=retry_after,
            remaining=remaining,
        )
        self.report(settle)

    @rule(
        failed_for=FAILED_FOR,
        batches=st.sampled_from([1, 2, 8]),
        probes=st.integers(0, 12),
        others=st.booleans(),
        rail=RAILS,
        wants=SMALL_WANTS,
    )
    def fail_in_a_row(
        self,
        failed_for: tuple[str, ...],
        batches: int,
        probes: int,
        others: bool,
        rail: str,
        wants: list[tuple[int, int, int]],
    ) -> None:
        """What a few tenants sent, and then probes of theirs or of others, so that it is long until the next one."""
        for n in range(batches):
            self.report(Settle("of-before", f"row-{n}", Event.FAILED, self.limits, failed_for=failed_for))
        for n in range(probes):
            self.governor.us += 20_000_000
            self.ask_for("transactional", wants=self.wants("transactional", [(1, 0, 1)]))
            names = (str(100 + n),) if others else failed_for
            self.report(Settle(f"grant-{self.calls}", f"probe-{n}", Event.FAILED, self.limits, failed_for=names))
        self.ask_for(rail, wants=self.wants(rail, wants))
        if self.refused:
            self.wait_exactly_as_told()

    def report(self, settle: Settle) -> None:
        self.refused = None
        in_flight = settle.grant in self.model.flights and self.model.flights[settle.grant] > self.governor.now
        jitter = self.governor.jitter
        actual, expected = settle.to(self.governor), self.model.settle(settle, self.governor.now, jitter)
        assert (actual.circuit, actual.opened, actual.closed) == (expected.circuit, expected.opened, expected.closed)
        assert abs(actual.blocked - expected.blocked) < NEAR
        assert abs(actual.refused_for - expected.refused_for) < NEAR
        assert self.governor.reply[0] == int(in_flight)

    @precondition(lambda self: self.granted)
    @rule(which=st.integers(-3, 30))
    def a_probe_leaves(self, which: int) -> None:
        call, _ = self.granted[which % len(self.granted)]
        self.governor.leaves(call.grant)
        self.model.leaves(call.grant, self.governor.now)
        self.refused = None  # what it was told is not true any more

    @rule(seconds=st.sampled_from([0.001, 0.05, 0.5, 60]))
    def a_request_leaves_late(self, seconds: float) -> None:
        self.governor.late(seconds, self.governor.limits)
        self.model.late(seconds, self.governor.limits.request, self.governor.now)
        self.refused = None  # what it was told is not true any more

    @rule()
    def redis_loses_its_memory(self) -> None:
        self.client.flushdb()
        self.model, self.refused = Model(), None

    @invariant()
    def states_agree(self) -> None:
        assert_same_state(self.governor, self.model)

    def wants(self, rail: str, wants: list[tuple[int, int, int]]) -> tuple[Want, ...]:
        def bucket(tenant: int) -> Bucket:
            found = self.buckets[tenant % len(self.buckets)]
            return replace(found, rail=rail) if self.by_rail and tenant % 2 else found

        return tuple(Want(tenant, priority, n, bucket(tenant)) for tenant, priority, n in wants)

    def ask_for(self, rail: str, batch: str | None = None, **rest: Any) -> None:
        self.calls += 1
        self.acquire(Acquire(f"grant-{self.calls}", batch or f"grant-{self.calls}", rail, self.limits, **rest))

    def acquire(self, call: Acquire) -> Decision:
        actual, expected = call.to(self.governor), self.model.acquire(call, self.governor.now)
        assert (actual.granted, actual.reason, actual.epoch) == (expected.granted, expected.reason, expected.epoch)
        assert (actual.probe, actual.shares, actual.cursors) == (expected.probe, expected.shares, expected.cursors)
        for is_wait, should in zip((actual.wait, *actual.starved), (expected.wait, *expected.starved), strict=True):
            assert (is_wait > 0) == (should > 0)
            assert -NEAR / 4 < is_wait - should < NEAR  # rounded up to the next µs
        self.refused = None if actual.granted else (call, actual)
        if actual.granted:
            self.granted.append((call, actual))
        return actual


@pytest.mark.timeout(600)  # a failure is shrunk to a short one: that takes minutes
def test_the_script_and_its_specification_agree_at_every_step(redis: redis_module.Redis) -> None:
    machine = type("Machine", (GovernorMachine,), {"client": redis})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=120,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
