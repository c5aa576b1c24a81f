"""The rules of `docs/governor.md` in plain Python: the oracle that the script is compared with.

Written from that page. Only the words of the client (buckets, wants, answers) are shared with what is tested. `now` is
passed in; levels and times are kept with six decimals, as in Redis.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from core.governor.client import (
    CLAIM_TTL,
    FLIGHT_TTL,
    HEADER_SLACK,
    MARK_SLACK,
    PERMIT_TTL,
    PROBE_GRACE,
    Bucket,
    Decision,
    Event,
    Settled,
    Want,
)
from tests.core.governor.calls import Acquire, Settle

#: Half of the last decimal that is kept: a level as close as that to a whole number has reached it.
HALF = 0.000_000_5


@dataclass(frozen=True)
class Level:
    tokens: float
    at: float

    def now(self, bucket: Bucket, now: float) -> float:
        return min(bucket.capacity, self.tokens + fixed(max(0.0, now - self.at)) * bucket.refill)


def fixed(value: float) -> float:
    return round(value, 6)


def whole(tokens: float) -> int:
    return max(0, math.floor(tokens + HALF))


def level_name(want: Want) -> str:
    return want.bucket.level_of(want.tenant)


def share_out(demands: Sequence[int], room: int) -> tuple[list[int], int]:
    """Max–min shares of `room`, and the place after which the ring goes on: the last one that got a left-over, or else
    the last one that got anything."""
    level = 0
    while level < max(demands) and sum(min(demand, level + 1) for demand in demands) <= room:
        level += 1
    shares = [min(demand, level) for demand in demands]
    left_over = [place for place, demand in enumerate(demands) if demand > level][: room - sum(shares)]
    for place in left_over:
        shares[place] += 1
    return shares, (left_over or [place for place, share in enumerate(shares) if share])[-1]


#: Seconds that a mark reaches ahead at most, its slack aside.
MARK_HORIZON = 2.0
#: What a bucket holds for requests that leave late, in seconds of its refill.
LATENESS_SECONDS = 0.0204
#: What comes back to a tenant in so many seconds is worth a request.
WORTH_SECONDS = 1.0


#: So many causes, and so many failed batches, open the circuit.
WITNESSES, FAILED_BATCHES = 3, 8
#: Seconds from the last probe to that of a stranger.
STRANGER_SECONDS = 1.0


def witnesses(sets: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """`sets`, none of which has a name in common with another, and one more: what went wrong has one of `names` for its cause."""
    known = [set(text.split(",")) for text in sets]
    if all(among.isdisjoint(names) for among in known):
        return (*sets, ",".join(names))
    return tuple(",".join(names) if among >= set(names) else text for among, text in zip(known, sets, strict=True))


def suspected(sets: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Of an open circuit, with one more failure: nobody if it is the provider's trouble."""
    found = witnesses(sets, names) if sets and names else ()
    return found if len(found) < FAILED_BATCHES else ()


@dataclass
class Model:
    """One provider's state. Times are seconds since the epoch."""

    level: Level | None = None
    quota: Level | None = None
    retries: Level | None = None
    trickle: Level | None = None
    tenants: dict[str, Level] = field(default_factory=dict)
    tenant_marks: dict[str, float] = field(default_factory=dict)
    flights: dict[str, float] = field(default_factory=dict)
    cursors: dict[int, int] = field(default_factory=dict)
    mark: float = 0.0
    q_mark: float = 0.0
    blocked: float = 0.0
    blocked_why: str = ""
    strikes: int = 0
    epoch: int = 0
    spent: int = 0
    run: tuple[str, ...] = ()
    run_for: tuple[str, ...] = ()  # sets of names
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)  # rail → code, sets of names
    refused_at: dict[str, float] = field(default_factory=dict)  # rail → time of the first of them
    refusing_from: float = 0.0
    circuit: str = ""
    circuit_rail: str = ""
    opened: float = 0.0
    probe_at: float = 0.0
    probed: float = 0.0
    probe_n: int = 0
    probe_next: str = ""
    probe_last: str = ""
    permit: str = ""
    permit_left: str = ""
    permit_until: float = 0.0

    def global_level(self, bucket: Bucket, now: float) -> float:
        self.level = self.level or Level(min(1.0, bucket.capacity), now)
        return self.level.now(bucket, now)

    def level_at_grant(self, bucket: Bucket, now: float) -> float:
        """Of a full bucket, what is above the credit for lateness is not there: it was idle."""
        level = self.global_level(bucket, now)
        return level if level < bucket.capacity - HALF else max(1.0, bucket.capacity - LATENESS_SECONDS * bucket.refill)

    def quota_level(self, bucket: Bucket, now: float) -> float:
        return self.quota.now(bucket, now) if self.quota else bucket.capacity

    def retry_level(self, bucket: Bucket, now: float) -> float:
        return self.retries.now(bucket, now) if self.retries else bucket.capacity

    def trickle_level(self, bucket: Bucket, now: float) -> float:
        return self.trickle.now(bucket, now) if self.trickle else bucket.capacity

    def circuit_for(self, rail: str) -> str:
        return self.circuit if self.circuit_rail in ("", rail) else ""

    def tenant_level(self, want: Want, now: float) -> float:
        return self.tenants.get(level_name(want), Level(want.bucket.capacity, now)).now(want.bucket, now)

    def forget(self, now: float) -> None:
        self.flights = {grant: until for grant, until in self.flights.items() if until > now}

    # acquire

    def acquire(self, call: Acquire, now: float) -> Decision:
        self.forget(now)
        wait, why, asked = 0.0, "", list(call.wants)
        probe = bool(self.circuit_for(call.rail))
        if probe:
            wait, why, asked = self.until_probe(call, now)
        nothing = dict.fromkeys(call.wants, 0)
        if wait > 0:
            shares, starved = tuple(nothing.values()), (0.0,) * len(call.wants)
            return Decision(False, wait, why, self.epoch, False, shares, starved, self.cursors_of(call))
        decision = self.decide(replace(call, wants=tuple(asked)), probe, now)
        shares = tuple((nothing | dict(zip(asked, decision.shares, strict=True))).values())
        starved = tuple((dict.fromkeys(call.wants, 0.0) | dict(zip(asked, decision.starved, strict=True))).values())
        return replace(decision, shares=shares, starved=starved, cursors=self.cursors_of(call))

    def decide(self, call: Acquire, probe: bool, now: float) -> Decision:
        """Behind the circuit, which has left in `call` those whom it lets through."""
        starved = [0.0] * len(call.wants)

        def refuse(wait: float, reason: str) -> Decision:
            none = (0,) * len(call.wants)
            return Decision(False, wait, reason, self.epoch, False, none, tuple(starved), self.cursors_of(call))

        if self.blocked > now:
            if not call.replay and not call.marketing:
                self.mark = max(self.mark, fixed(self.blocked + MARK_SLACK))
            return refuse(self.blocked - now, self.blocked_why)
        if call.marketing and self.mark > now:
            return refuse(self.mark - now, "transactional_waits")
        room, quota = call.max_batch, call.limits.quota
        if probe and call.probe_batch is not None:
            room = call.probe_batch
        if quota and not call.replay:
            missing = 1 + call.reserve(quota) - self.quota_level(quota, now)
            if call.marketing and self.q_mark > now:
                return refuse(self.q_mark - now, "quota")
            if missing > HALF:
                if not call.marketing:
                    self.q_mark = fixed(now + min(MARK_HORIZON, missing / quota.refill) + MARK_SLACK)
                return refuse(missing / quota.refill, "quota")
            room = min(room, whole(1 - missing))
        if call.retry and not probe:
            budget, own = call.limits.retries, call.limits.trickle
            ways = [(1 + call.reserve(budget) - self.retry_level(budget, now), budget)]
            if call.marketing:
                ways.append((1 - self.trickle_level(own, now), own))
            if all(missing > HALF for missing, _ in ways):
                return refuse(min(missing / bucket.refill for missing, bucket in ways), "retries")
        if call.marketing and (wait := self.until_token(call, now)) > 0:
            return refuse(wait, "global")
        demands = self.demands(call, now, starved)
        if (wait := self.until_worth(call, room, now)) > 0:
            return refuse(wait, "tenant")
        if (wait := self.until_token(call, now)) > 0:
            self.mark = fixed(now + min(MARK_HORIZON, wait) + MARK_SLACK)
            return refuse(wait, "global")
        shares = self.split(call.wants, demands, room)
        self.spend(call, shares, now, probe)
        cursors = self.cursors_of(call)
        return Decision(True, 0.0, "", self.epoch, probe, tuple(shares), tuple(starved), cursors)

    def cursors_of(self, call: Acquire) -> dict[int, int]:
        return {want.priority: self.cursors.get(want.priority, 0) for want in call.wants}

    def until_probe(self, call: Acquire, now: float) -> tuple[float, str, list[Want]]:
        """How long to wait, why, and for whom it is a probe then."""
        if self.permit_until > now:
            return self.permit_until - now, "circuit", []
        graces = 0 if (self.probe_next or "due") == ("replay" if call.replay else "due") else 1
        if call.batch == self.probe_last if call.replay else call.marketing and not self.circuit_rail:
            graces = 2
        earliest = self.probe_at
        if self.permit_left:
            earliest = max(earliest, self.permit_until + self.until_next_probe(self.probe_n + 1, 0.5))
        wait = earliest + graces * PROBE_GRACE - now
        suspects = {name for names in self.run_for for name in names.split(",")}
        if self.circuit != "unreachable" or not suspects or call.replay:
            return wait, "circuit", list(call.wants)
        if strangers := [want for want in call.wants if str(want.tenant) not in suspects]:
            soon = self.probed + STRANGER_SECONDS + (2 * PROBE_GRACE if call.marketing else 0) - now
            return min(soon, wait), "circuit", strangers
        return wait, "suspected", list(call.wants)

    def until_next_probe(self, n: int, jitter: float) -> float:
        return min(2.0 if self.circuit == "refusing" else 15.0, 2.0 ** min(10, n)) * (1 + jitter) / 2

    def until_token(self, call: Acquire, now: float) -> float:
        bucket = call.limits.request
        missing = 1 + call.reserve(bucket) - self.global_level(bucket, now)
        return missing / bucket.refill if missing > HALF else 0.0

    def may_take(self, call: Acquire, want: Want, now: float) -> tuple[int, float]:
        """What the want's tenant may take, and until when its mark lasts."""
        mark = self.tenant_marks.get(level_name(want), 0.0) if call.marketing else 0.0
        free = whole(self.tenant_level(want, now) - call.reserve(want.bucket))
        return (free if mark <= now else 0), mark

    def demands(self, call: Acquire, now: float, starved: list[float]) -> list[int]:
        """What each want may get; `starved` is filled in, and tenants whose tokens do not suffice are marked."""
        demands, taken = [0] * len(call.wants), dict.fromkeys((want.tenant for want in call.wants), 0)
        for place, want in sorted(enumerate(call.wants), key=lambda item: item[1].priority):
            level, reserve = self.tenant_level(want, now), call.reserve(want.bucket)
            may, mark = self.may_take(call, want, now)
            demands[place] = min(want.sends, may - taken[want.tenant])
            taken[want.tenant] += demands[place]
            if may < 1:
                starved[place] = max((1 + reserve - level) / want.bucket.refill, mark - now)
            if not call.marketing and not want.bucket.rail and demands[place] < want.sends:
                self.tenants.setdefault(level_name(want), Level(want.bucket.capacity, now))
                ahead = min(MARK_HORIZON, max(0.0, (1 - level) / want.bucket.refill))
                self.tenant_marks[level_name(want)] = fixed(now + ahead + 1)
        return demands

    def until_worth(self, call: Acquire, room: int, now: float) -> float:
        """How long no tenant's tokens are worth a request for the want that it has first."""
        first: dict[int, Want] = {}
        for want in sorted(call.wants, key=lambda want: want.priority):
            first.setdefault(want.tenant, want)
        waits = []
        for want in first.values():
            bucket, reserve = want.bucket, call.reserve(want.bucket)
            soon = whole(bucket.refill * WORTH_SECONDS)
            enough = max(1, min(want.sends, room, soon, whole(bucket.capacity - reserve)))
            may, mark = self.may_take(call, want, now)
            missing = enough + reserve - self.tenant_level(want, now)
            waits.append(0.0 if may >= enough else max(missing / bucket.refill, mark - now))
        return min(waits, default=0.0)

    def split(self, wants: Sequence[Want], demands: Sequence[int], room: int) -> list[int]:
        shares = [0] * len(wants)
        for priority in sorted({want.priority for want in wants}):
            cursor = self.cursors.get(priority, 0)
            ring = [place for place, want in enumerate(wants) if want.priority == priority and demands[place]]
            ring.sort(key=lambda place: (wants[place].tenant <= cursor, wants[place].tenant))
            if ring and room:
                got, last = share_out([demands[place] for place in ring], room)
                for place, share in zip(ring, got, strict=True):
                    shares[place] = share
                room -= sum(got)
                self.cursors[priority] = wants[ring[last]].tenant
        return shares

    def spend(self, call: Acquire, shares: Sequence[int], now: float, probe: bool) -> None:
        self.level = Level(fixed(self.level_at_grant(call.limits.request, now) - 1), now)
        self.spent += 1
        self.flights[call.grant] = fixed(now + FLIGHT_TTL)
        if call.limits.quota and not call.replay:
            self.q_mark = self.q_mark if call.marketing else 0.0
            self.quota = Level(fixed(self.quota_level(call.limits.quota, now) - sum(shares)), now)
        if call.retry and not probe:
            self.retries = Level(fixed(self.retry_level(call.limits.retries, now) - 1), now)
            if call.marketing:
                self.trickle = Level(fixed(max(0.0, self.trickle_level(call.limits.trickle, now) - 1)), now)
        for tenant in {want.tenant for want in call.wants}:
            own = [(want, share) for want, share in zip(call.wants, shares, strict=True) if want.tenant == tenant]
            name = level_name(own[0][0])
            if taken := sum(share for _, share in own):
                self.tenants[name] = Level(fixed(self.tenant_level(own[0][0], now) - taken), now)
            if not call.marketing and all(share == want.sends for want, share in own):
                self.tenant_marks.pop(name, None)
        if not call.marketing:
            self.mark = 0.0
        if probe:
            self.probe_n += bool(self.permit_left)
            self.permit, self.permit_left, self.permit_until = call.grant, "", fixed(now + CLAIM_TTL)
            self.probed, self.probe_last, self.probe_next = fixed(now), call.batch, "due" if call.replay else "replay"

    # settle

    def settle(self, call: Settle, now: float, jitter: float) -> Settled:
        self.forget(now)
        if self.flights.pop(call.grant, None) is not None:
            self.give_back(call, now)
        closes, since = self.closes(call), 0.0
        if closes:
            since = max(0.000_001, now - self.refusing_from) if self.refusing_from else 0.0
            self.turn_circuit("", self.circuit_rail)
        opens, wide = self.opens(call), not call.marketing or self.circuit_for(call.rail) != ""
        self.count(call, now, jitter)
        if opens:
            known, first = self.refusing_from, self.refused_at.get(call.rail, 0.0)
            sets = self.run_for
            self.turn_circuit(opens, "" if wide or opens != "refusing" else call.rail)
            self.opened, self.probed, self.probe_at = now, fixed(now), fixed(now + 0.5 + jitter / 2)
            self.run_for = suspected(sets, call.failed_for) if opens == "unreachable" else ()
            self.refusing_from = known
            if opens == "refusing":
                self.refusing_from = min(known, first) if known else first
        elif self.circuit and self.permit == call.grant:
            self.permit, self.permit_left, self.permit_until = "", "", 0.0
            if call.event != Event.NONE:
                self.probe_n += 1
                self.probe_at = fixed(now + self.until_next_probe(self.probe_n, jitter))
        if call.remaining is not None and not call.stops:
            free = max(0, call.remaining - len(self.flights))
            level = self.global_level(call.limits.request, now)
            if whole(level) > free:
                self.level, self.epoch = Level(float(free), now), self.epoch + 1
            elif level > free:
                late = HEADER_SLACK * call.limits.request.refill
                self.level = Level(fixed(max(free, level - late)), now)
        return Settled(self.circuit_for(call.rail), bool(opens), closes, max(0.0, self.blocked - now), since)

    def leaves(self, grant: str, now: float) -> None:
        self.forget(now)
        if self.permit == grant:
            self.permit_left, self.permit_until = "1", fixed(now + PERMIT_TTL)

    def late(self, seconds: float, bucket: Bucket, now: float) -> None:
        self.forget(now)
        self.level = Level(fixed(max(-1.0, self.global_level(bucket, now) - seconds * bucket.refill)), now)

    def give_back(self, call: Settle, now: float) -> None:
        request, quota, sends_back = call.limits.request, call.limits.quota, sum(sends for _, sends, _ in call.back)
        if call.unused:
            self.spent -= 1
            if call.epoch == self.epoch:
                self.level = Level(fixed(min(request.capacity, self.global_level(request, now) + 1)), now)
            if call.retry:
                budget = call.limits.retries
                self.retries = Level(fixed(min(budget.capacity, self.retry_level(budget, now) + 1)), now)
                if call.marketing:
                    own = call.limits.trickle
                    self.trickle = Level(fixed(min(own.capacity, self.trickle_level(own, now) + 1)), now)
        if quota and sends_back:
            self.quota = Level(fixed(min(quota.capacity, self.quota_level(quota, now) + sends_back)), now)
        for tenant, sends, bucket in call.back:
            name = bucket.level_of(tenant)
            if level := self.tenants.get(name):
                self.tenants[name] = replace(level, tokens=min(bucket.capacity, level.tokens + sends))

    def turn_circuit(self, reason: str, rail: str) -> None:
        """Open it for `rail` (both: ""), or close the one that was."""
        self.circuit, self.circuit_rail = reason, rail if reason else ""
        self.run, self.run_for, self.probed = (), (), 0.0
        self.permit, self.permit_left, self.probe_next, self.probe_last = "", "", "", ""
        self.opened, self.probe_at, self.probe_n, self.permit_until, self.refusing_from = 0.0, 0.0, 0, 0.0, 0.0
        self.forget_refusals(rail)

    def forget_refusals(self, rail: str) -> None:
        for kept in (self.refused, self.refused_at):
            for name in [name for name in kept if rail in ("", name)]:
                del kept[name]

    def opens(self, call: Settle) -> str:
        """A circuit that is open for one rail may still open for both, and one that is open for another reason as `refusing`."""
        wide = self.circuit and not self.circuit_rail
        if call.event == Event.FAILED:
            batches, sets = self.failures(call)
            return "unreachable" if not wide and (len(sets) == WITNESSES or len(batches) == FAILED_BATCHES) else ""
        if self.counts_refusal(call):
            return "refusing" if len(self.refusals(call)) == 1 + WITNESSES else ""
        return "credential" if call.event == Event.CREDENTIAL and not wide else ""

    def counts_refusal(self, call: Settle) -> bool:
        heard = call.event in (Event.REFUSED, Event.FORBIDDEN)
        return heard and call.refused is not None and self.circuit_for(call.rail) != "refusing"

    def refusals(self, call: Settle) -> tuple[str, ...]:
        """The run of refusals of this rail with this one: its code, then sets of names that have none in common."""
        assert call.refused
        code, names = call.refused.code, call.refused.names
        kept = self.refused.get(call.rail, ("",))
        return (code, *witnesses(kept[1:] if kept[0] == code else (), names))

    def failures(self, call: Settle) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The run of failed batches with this one, and sets of names that have none in common."""
        if call.batch in self.run:
            return self.run, self.run_for
        return (*self.run, call.batch), witnesses(self.run_for, call.failed_for or (call.batch,))

    def closes(self, call: Settle) -> bool:
        """Only what proves something: that it can be reached, that it takes the key, that it takes anything."""
        if call.event == Event.ACCEPTED:
            return self.circuit_for(call.rail) != ""
        if self.circuit == "unreachable":
            return call.stops or call.event in (Event.REFUSED, Event.ANSWERED)
        return self.circuit == "credential" and call.event == Event.ANSWERED

    def count(self, call: Settle, now: float, jitter: float) -> None:
        """What the event does to the run of failures, the strikes and the block."""
        if call.event == Event.FAILED and (not self.circuit or self.circuit_rail) and call.batch not in self.run:
            self.run, self.run_for = self.failures(call)
        elif call.event == Event.FAILED and self.circuit == "unreachable":
            self.run_for = suspected(self.run_for, call.failed_for)
        if call.stops or call.event in (Event.ACCEPTED, Event.ANSWERED, Event.REFUSED):
            self.run, self.run_for = (), ()
        if self.counts_refusal(call):
            run = self.refusals(call)
            if self.refused.get(call.rail, ("",))[0] != run[0]:
                self.refused_at[call.rail] = fixed(now)
            self.refused[call.rail] = run
        if call.event == Event.ACCEPTED:
            self.strikes = 0
            self.forget_refusals(call.rail)
        if call.stops:
            self.strikes = max(1, self.strikes + (call.epoch == self.epoch))
            pause = min(60.0, 2.0 ** (self.strikes - 1)) * (1 + jitter) / 2
            until = now + min(86_400.0, max(1.0, pause if call.retry_after is None else call.retry_after))
            if until > self.blocked:
                self.blocked, self.blocked_why = fixed(until), call.event.value
            self.level = Level(0.0, fixed(self.blocked - 1 / call.limits.request.refill - HALF))
            self.epoch += 1
