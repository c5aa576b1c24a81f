"""The real client and script of the governor, under a clock that the test moves."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import redis

import core.governor.client
from core.governor.client import Bucket, Decision, Event, Governor, Limits, Settled, Want
from tests.core.governor.calls import Acquire, Settle
from tests.core.governor.model import Level, Model

SCRIPT = Path(core.governor.client.__file__).with_name("governor.lua").read_text()
#: The one place where the script reads the clock. Redis' TIME cannot be set, so the tests' variant reads it from ARGV.
CLOCK = "redis.call('TIME')"
assert SCRIPT.count(CLOCK) == 1, "the governor must read its clock in exactly one place"

TEXTS = ("blocked_why", "circuit", "circuit_rail", "probe_next", "probe_last", "permit", "permit_left", "run")
NUMBERS = (
    *("mark", "q_mark", "blocked", "strikes", "epoch", "spent"),
    *("opened", "probe_at", "probed", "probe_n", "permit_until", "refusing_from"),
)
#: The last decimal that is kept, and what a double loses on a time since the epoch.
NEAR = 0.000_002


#: A tenant bucket that never says no.
PLENTY = Bucket(1_000_000, 1_000_000)


def about(seconds: float) -> Any:
    """A wait: rounded up to the next µs, after arithmetic with doubles."""
    return pytest.approx(seconds, abs=NEAR)


def want(tenant: int = 1, sends: int = 1, priority: int = 0, bucket: Bucket = PLENTY) -> Want:
    return Want(tenant, priority, sends, bucket)


class TimedGovernor(Governor):
    """With `ask` and `report` as short forms of `acquire` and `settle`: `limits` are this object's, each grant has an
    id of its own (`grant`: the last one), and what is not said is one send of tenant 1."""

    def __init__(self, client: "redis.Redis", provider: str = "test") -> None:
        super().__init__(client, provider)
        self.client = client
        self._script = client.register_script(SCRIPT.replace(CLOCK, "{ARGV[3], ARGV[4]}"))
        self.us = 1_790_000_000_123_456
        self.jitter = 0.5
        self.reply: list[Any] = []
        self.limits = Limits(Bucket(1, 10))
        self.asked = 0

    @property
    def now(self) -> float:
        return self.us // 1_000_000 + self.us % 1_000_000 / 1_000_000

    def advance(self, seconds: float) -> None:
        self.us += round(seconds * 1_000_000)

    @property
    def grant(self) -> str:
        return f"grant-{self.asked}"

    def ask(
        self,
        rail: str,
        *wants: Want,
        batch: str = "",
        replay: bool = False,
        max_batch: int = 100,
        retry: bool = False,
        probe_batch: int | None = None,
    ) -> Decision:
        self.asked += 1
        wants = () if replay else wants or (want(),)
        call = Acquire(self.grant, batch or self.grant, rail, self.limits, wants, replay, max_batch, retry, probe_batch)
        return call.to(self)

    def transactional(self, *wants: Want) -> Decision:
        return self.ask("transactional", *wants)

    def marketing(self, *wants: Want) -> Decision:
        return self.ask("marketing", *wants)

    def report(self, event: Event, grant: str = "", batch: str = "", **rest: Any) -> Settled:
        return Settle(grant or self.grant, batch or grant or self.grant, event, self.limits, **rest).to(self)

    def tokens(self) -> float:
        """The global level now."""
        state = self.state()
        level = Level(float(state["tokens"]), float(state["at"]))
        return level.now(self.limits.request, self.now)

    def _call(self, operation: str, **arguments: Any) -> list[Any]:
        if operation == "settle":
            arguments["jitter"] = self.jitter
        clock = [self.us // 1_000_000, self.us % 1_000_000]
        self.reply = cast("list[Any]", self._script(keys=self.keys, args=[operation, json.dumps(arguments), *clock]))
        assert self.reply[1] == self.us
        return self.reply

    def state(self) -> dict[str, str]:
        return _texts(self.client.hgetall(self.keys[0]))

    def levels(self) -> dict[str, tuple[float, float, float]]:
        """Of each tenant's level: tokens, their time, mark."""
        stored = _texts(self.client.hgetall(self.keys[1]))
        return {name: cast("Any", tuple(map(float, text.split(":")))) for name, text in stored.items()}

    def tenants(self) -> dict[int, tuple[float, float, float]]:
        """The levels that are for both rails, by tenant."""
        return {int(name): level for name, level in self.levels().items() if ":" not in name}

    def flights(self) -> dict[str, float]:
        found = cast("list[tuple[bytes, float]]", self.client.zrange(self.keys[2], 0, -1, withscores=True))
        return {grant.decode(): until for grant, until in found}


def assert_same_state(governor: TimedGovernor, model: Model) -> None:
    state = governor.state()
    for name in TEXTS:
        expected = ",".join(model.run) if name == "run" else getattr(model, name)
        assert state.get(name, "") == expected, name
    for name in NUMBERS:
        assert abs(float(state.get(name, 0)) - getattr(model, name)) < NEAR, name
    _assert_same_level(state, "tokens", "at", model.level)
    _assert_same_level(state, "q_tokens", "q_at", model.quota)
    _assert_same_level(state, "r_tokens", "r_at", model.retries)
    _assert_same_level(state, "m_tokens", "m_at", model.trickle)
    assert state.get("run_for", "") == ";".join(model.run_for)
    for rail, name in (("transactional", "refused_t"), ("marketing", "refused_m")):
        assert state.get(name, "") == ";".join(model.refused.get(rail, ())), name
        assert abs(float(state.get(f"{name}_at", 0)) - model.refused_at.get(rail, 0.0)) < NEAR, name
    cursors = {int(name.removeprefix("cursor:")): int(tenant) for name, tenant in state.items() if "cursor:" in name}
    assert cursors == model.cursors
    flights = governor.flights()
    assert flights.keys() == model.flights.keys()
    assert all(abs(until - model.flights[grant]) < NEAR for grant, until in flights.items())
    levels = governor.levels()
    assert levels.keys() == model.tenants.keys()
    for name, stored in levels.items():
        level = model.tenants[name]
        expected_row = (level.tokens, level.at, model.tenant_marks.get(name, 0.0))
        assert all(abs(a - b) < NEAR for a, b in zip(stored, expected_row, strict=True)), name


def _assert_same_level(state: dict[str, str], tokens: str, at: str, level: Level | None) -> None:
    assert (tokens in state) == (level is not None), tokens
    if level is not None:
        assert abs(float(state[tokens]) - level.tokens) < NEAR, tokens
        assert abs(float(state[at]) - level.at) < NEAR, at


def _texts(found: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in found.items()}
