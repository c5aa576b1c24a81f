"""Search: who has something to send, and what does the governor let through? One look, no lock, nothing changed but
tokens taken."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from uuid import UUID

from core.governor.client import Bucket, Decision, Governor, Limits, Want
from core.security.ids import new_id
from messaging.dispatch.prefetch import Prefetch
from messaging.domain.lane import LaneKey
from messaging.domain.rails import PRIORITIES, Channel, Rail
from messaging.ledger import buckets
from messaging.ledger.candidates import TENANTS, Lane, candidates, next_replay
from messaging.ledger.claim import Take
from messaging.providers.base import Adapter, Confirmation

#: Seconds for which a tenant without tokens is left out at most: a change of its bucket acts within 5 s.
STARVED_SECONDS = 2.0
#: Seconds for which a lane goes apart whose contents take long to render.
SLOW_SECONDS = 30.0
#: Batches of others between two of slow contents at most; else as many as other tenants have something due.
SLOW_TURNS = 10
#: Seconds until a provider without a bucket is looked at again: long enough to end the ticket, not to wait in a thread.
NO_BUCKET_SECONDS = 60.0
#: What some work waits for, and other work does not.
_ITS_OWN = ("tenant", "retries", "suspected")


@dataclass(frozen=True, slots=True)
class Grant:
    """One request, allowed. New work: `takes`; else `replay` is the batch to be repeated.

    `charged`: tenant → (sends taken from its bucket, that bucket).
    """

    id: str
    batch: UUID
    decision: Decision
    limits: Limits
    takes: tuple[Take, ...] = ()
    charged: Mapping[int, tuple[int, Bucket]] = field(default_factory=dict)
    apart: tuple[LaneKey, ...] = ()  # the lanes that go out apart from others, if these are such
    suspects: int = 0  # of the lane in which a culprit is looked for, when this was granted
    trial: bool = False  # one that is held, and this is the one send that finds out whether the cause is gone
    retry: bool = False  # it repeats or searches: it takes from the retry budget
    replay: bool = False
    more: bool = False  # due sends stay behind


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing may leave now. Look again in `seconds`; with `new_work_helps`, also when a ticket comes."""

    seconds: float
    reason: str
    new_work_helps: bool


class Kind(Enum):
    TOGETHER = auto()
    SLOW = auto()  # of one tenant, whose contents take long to render
    APART = auto()  # isolated, or held and on trial


@dataclass(frozen=True, slots=True)
class Group:
    """Lanes that may share a batch."""

    kind: Kind
    name: str
    lanes: Sequence[Lane]

    @property
    def apart(self) -> bool:
        return self.kind is Kind.APART


class Memory:
    """What one process remembers of a rail between two looks: ring cursors, and tenants that have no tokens.

    Both are hints that save work: the governor decides with its own.
    """

    def __init__(self) -> None:
        self.cursors: dict[int, int] = {}
        self.apart_next = False  # the last batch was a mixed one: lanes that go apart are next
        self.apart_last = ""
        self.since_slow = 0  # batches since the last one of slow contents
        self.slow_last = ""
        self.contents = Prefetch()
        self.probed = 0  # the tenant of the last probe
        #: Ids of sends of batches that were lost while they were prepared, by a process that lives to say so, and from when on.
        self.innocent: deque[tuple[float, list[UUID]]] = deque()
        self._slow: dict[LaneKey, float] = {}
        self._starved: dict[int, float] = {}
        self._lock = threading.Lock()

    def starved(self) -> list[int]:
        now = time.monotonic()
        with self._lock:
            self._starved = {tenant: until for tenant, until in self._starved.items() if until > now}
            return list(self._starved)

    def learn(self, wants: Sequence[Want], decision: Decision) -> None:
        now = time.monotonic()
        with self._lock:
            self.cursors.update(decision.cursors)
            for want, seconds in zip(wants, decision.starved, strict=True):
                if seconds > 0:
                    self._starved[want.tenant] = now + min(seconds, STARVED_SECONDS)

    def took_turn(self, group: Group) -> None:
        self.apart_next = not group.apart
        self.since_slow = 0 if group.kind is Kind.SLOW else self.since_slow + 1
        if group.apart:
            self.apart_last = group.name
        elif group.kind is Kind.SLOW:
            self.slow_last = group.name

    def exclude_for(self, tenants: Iterable[int], seconds: float) -> None:
        """Leave these tenants out for a while."""
        now = time.monotonic()
        with self._lock:
            self._starved |= dict.fromkeys(tenants, now + seconds)

    def slow(self, lanes: Iterable[LaneKey]) -> None:
        """The next contents of these lanes take long to render: they go out apart from other tenants' for a while."""
        now = time.monotonic()
        with self._lock:
            self._slow |= dict.fromkeys(lanes, now + SLOW_SECONDS)

    def slow_now(self) -> frozenset[LaneKey]:
        now = time.monotonic()
        with self._lock:
            if self._slow:
                self._slow = {lane: until for lane, until in self._slow.items() if until > now}
            return frozenset(self._slow)

    def next_fed(self) -> float | None:
        """Seconds until the first starved tenant has a token again."""
        now = time.monotonic()
        with self._lock:
            return max(0.001, min(self._starved.values()) - now) if self._starved else None


_memories: defaultdict[tuple[str, str, str], Memory] = defaultdict(Memory)


def memory_of(provider: str, channel: str, rail: str) -> Memory:
    return _memories[provider, channel, rail]


def search(
    adapter: Adapter,
    governor: Governor,
    channel: Channel,
    rail: Rail,
    memory: Memory,
    *,
    interrupted: Callable[[], bool] = lambda: False,
) -> Grant | Wait | None:
    """A grant, or when to look again, or None: nothing is due (or nobody may be sent for).

    Contents are compiled before a token is taken. That may take a while in a process that has just started: once `interrupted`
    says that there is new work, those go that are ready.
    """
    limits = buckets.limits_of(adapter.name)
    if limits is None:
        return Wait(NO_BUCKET_SECONDS, "no_bucket", new_work_helps=False)
    later: list[Wait] = []
    found = _replay(adapter, governor, channel, rail, limits)
    if isinstance(found, Grant):
        return found
    if found:
        later.append(found)
    new = _new_work(adapter, governor, channel, rail, memory, limits, interrupted)
    if isinstance(new, Grant):
        return new
    if new:
        later.append(new)
    if not later:
        return None
    first = min(later, key=lambda wait: wait.seconds)
    # What keeps a repetition waiting need not keep a login code waiting that comes only now: it is worth a look.
    return replace(first, new_work_helps=new is None or any(wait.new_work_helps for wait in later))


def _replay(adapter: Adapter, governor: Governor, channel: Channel, rail: Rail, limits: Limits) -> Grant | Wait | None:
    passed: list[UUID] = []
    refused: Wait | None = None
    # Two at the most: an open circuit may refuse the batch that probed last, and take another.
    for _ in range(2):
        batch = next_replay(adapter.name, channel, rail, passed)
        if batch is None:
            return refused
        grant = str(new_id())
        decision = governor.acquire(
            grant=grant, batch=str(batch), rail=rail, limits=limits, max_batch=1, replay=True, retry=True
        )
        if decision.granted:
            return Grant(grant, batch, decision, limits, retry=True, replay=True, more=True)
        wait = Wait(decision.wait, decision.reason, new_work_helps=decision.reason in _ITS_OWN)
        refused = min(refused or wait, wait, key=lambda w: w.seconds)
        if decision.reason != "circuit":
            return refused
        passed.append(batch)
    return refused


def _new_work(
    adapter: Adapter,
    governor: Governor,
    channel: Channel,
    rail: Rail,
    memory: Memory,
    limits: Limits,
    interrupted: Callable[[], bool],
) -> Grant | Wait | None:
    lanes = _due_lanes(adapter, channel, rail, memory)
    if not lanes:
        fed = memory.next_fed()
        return Wait(fed, "tenant", new_work_helps=True) if fed is not None else None
    first: Wait | None = None
    while lanes:
        group = _choose(lanes, memory)
        ready = memory.contents.warm(channel, rail, group.lanes, adapter.max_batch, interrupted)
        found = _ask_for(adapter, governor, rail, memory, limits, lanes, replace(group, lanes=ready))
        if isinstance(found, Grant) or found.reason not in _ITS_OWN:
            return found
        first = min(first or found, found, key=lambda wait: wait.seconds)
        # What they lack is their own: no more searching for now, no tokens of their tenants, or the circuit may be open for
        # their contents. Everybody else goes on.
        starved, asked = set(memory.starved()), set(ready)
        lanes = [
            lane
            for lane in lanes
            if lane.tenant not in starved and not (_searches(lane) if found.reason == "retries" else lane in asked)
        ]
    return first


def _ask_for(
    adapter: Adapter,
    governor: Governor,
    rail: Rail,
    memory: Memory,
    limits: Limits,
    lanes: Sequence[Lane],
    group: Group,
) -> Grant | Wait:
    chosen = group.lanes
    retry = _searches(chosen[0])
    by_want: dict[tuple[int, int], list[Lane]] = defaultdict(list)
    for lane in chosen:
        by_want[lane.priority, lane.tenant].append(lane)
    shares = buckets.tenant_buckets(adapter, limits, rail, {lane.tenant for lane in chosen})
    wants = [
        Want(tenant, priority, min(adapter.max_batch, sum(lane.sends for lane in wanted)), shares[tenant])
        for (priority, tenant), wanted in by_want.items()
    ]
    batch = new_id()
    decision = governor.acquire(
        grant=str(batch),
        batch=str(batch),
        rail=rail,
        limits=limits,
        max_batch=adapter.max_batch,
        wants=wants,
        retry=retry,
        # What a probe costs if its answer is lost: one send that nobody can tell about.
        probe_batch=1 if adapter.confirmation is Confirmation.AT_MOST_ONCE else None,
    )
    memory.learn(wants, decision)
    if not decision.granted:
        return Wait(decision.wait, decision.reason, new_work_helps=decision.reason in _ITS_OWN)
    memory.took_turn(group)
    takes: list[Take] = []
    charged: dict[int, tuple[int, Bucket]] = {}
    probing = _probes_for(wants, decision, memory)
    for want, share in zip(wants, decision.shares, strict=True):
        if share:
            if probing in (None, want.tenant):
                takes += _hand_out(by_want[want.priority, want.tenant], share)
            charged[want.tenant] = (charged.get(want.tenant, (0, want.bucket))[0] + share, want.bucket)
    return Grant(
        str(batch),
        batch,
        decision,
        limits,
        takes=tuple(takes),
        charged=charged,
        apart=tuple(dict.fromkeys(lane.key for lane in chosen if probing in (None, lane.tenant)))
        if group.apart
        else (),
        suspects=chosen[0].suspects,
        trial=chosen[0].trial,
        retry=retry,
        # As many tenants as one look takes in: there may be more of them behind.
        more=sum(lane.sends for lane in lanes) > sum(take.sends for take in takes)
        or len({lane.tenant for lane in lanes}) >= TENANTS,
    )


def _probes_for(wants: Sequence[Want], decision: Decision, memory: Memory) -> int | None:
    """The one tenant that a probe is for, of those that got a share; None: it is none, and all go.

    Of one tenant, each in turn: if the circuit is open since some contents are refused, others' must not be refused with them for
    ever. What the rest was granted goes back.
    """
    if not decision.probe:
        return None
    tenants = {want.tenant for want, share in zip(wants, decision.shares, strict=True) if share}
    memory.probed = min(tenants, key=lambda tenant: (tenant <= memory.probed, tenant))
    return memory.probed


def _searches(lane: Lane) -> bool:
    return lane.trial or lane.suspects > 0


def _choose(lanes: Sequence[Lane], memory: Memory) -> Group:
    """Those that go together, or a group that goes apart: in turn, as long as there are both. The groups go in turn, too; of
    tenants with slow contents each is one among all."""
    groups: dict[str, list[Lane]] = {}
    slow: dict[str, list[Lane]] = {}
    slow_lanes = memory.slow_now()
    together = []
    for lane in lanes:
        if lane.key in slow_lanes and not lane.alone:
            slow.setdefault(str(lane.tenant), []).append(lane)
        elif not lane.alone:
            together.append(lane)
        elif _searches(lane):
            # Of one priority: what is tried, or is half of the suspects, must not be more than that.
            groups.setdefault(str(lane.key.place), [lane])
        else:
            groups.setdefault(str(lane.party or lane.key.place), []).append(lane)
    others = min(SLOW_TURNS, len({lane.tenant for lane in together}))
    if slow and memory.since_slow >= others:
        return _next_of(slow, memory.slow_last, Kind.SLOW)
    if groups and (not together or memory.apart_next):
        return _next_of(groups, memory.apart_last, Kind.APART)
    return Group(Kind.TOGETHER, "", together) if together else _next_of(slow, memory.slow_last, Kind.SLOW)


def _next_of(groups: Mapping[str, list[Lane]], last: str, kind: Kind) -> Group:
    names = sorted(groups)
    name = next((name for name in names if name > last), names[0])
    return Group(kind, name, groups[name])


def _due_lanes(adapter: Adapter, channel: Channel, rail: Rail, memory: Memory) -> list[Lane]:
    """Due lanes in ring order, the first priority first; further priorities only while the batch would not be full."""
    lanes: list[Lane] = []
    for priority in PRIORITIES[rail]:
        lanes += candidates(
            channel,
            rail,
            priority,
            cursor=memory.cursors.get(priority, 0),
            starved=memory.starved(),
            max_batch=adapter.max_batch,
        )
        if sum(lane.sends for lane in lanes) > adapter.max_batch:
            break
    return lanes


def _hand_out(lanes: Sequence[Lane], share: int) -> list[Take]:
    """A tenant's share, to its lanes in their order."""
    takes = []
    for lane in lanes:
        sends = min(lane.sends, share)
        if sends:
            # The oldest one was refused alone: another one tells whether that is its own fault.
            skip = random.randrange(1, lane.due) if lane.trial and lane.due > 1 else 0  # noqa: S311
            takes.append(Take(lane.tenant, lane.priority, lane.blast, sends, skip))
            share -= sends
    return takes
