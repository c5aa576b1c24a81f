"""No wake-up is lost: who finds a leader has told it before it lets go of its ticket."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from core.broker import queues
from core.governor.client import RETRY_SHARE
from messaging.dispatch import leader as seats
from messaging.dispatch import turn
from messaging.dispatch.leader import Leader
from messaging.domain.rails import Channel, Rail, queue_name
from tests.factories import make_tenant, statuses, submit_some
from tests.rig import Rig, seed_buckets


@pytest.fixture
def no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets in line gives up at once."""
    monkeypatch.setattr(seats, "LINE_SECONDS", 0)


@pytest.mark.usefixtures("no_line")
def test_one_sits_the_next_leaves_a_flag() -> None:
    leader = Leader()
    assert leader.acquire()
    assert not leader.flagged()
    assert not leader.acquire()
    assert leader.flagged()
    assert leader.release()
    assert leader.acquire()
    assert not leader.release()


@pytest.mark.usefixtures("no_line")
def test_looking_takes_the_flag_down_and_a_later_one_stays() -> None:
    leader = Leader()
    leader.acquire()
    leader.acquire()
    leader.about_to_search()
    assert not leader.flagged()
    leader.acquire()
    assert leader.release()


@pytest.mark.usefixtures("no_line")
def test_a_flag_ends_a_wait_that_new_work_can_shorten_and_no_other() -> None:
    leader = Leader()
    leader.acquire()
    waiting = threading.Thread(target=leader.wait, args=(60,), kwargs={"until_flag": True})
    waiting.start()
    leader.acquire()
    waiting.join(10)
    assert not waiting.is_alive()
    leader.wait(0.01, until_flag=False)  # flagged, and over by its time only
    assert leader.flagged()


def test_the_one_in_line_gets_the_seat_and_nobody_else_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "LINE_SECONDS", 60)
    leader = Leader()
    leader.acquire()
    with ThreadPoolExecutor(1) as pool:
        in_line = pool.submit(leader.acquire)
        while not leader.flagged():
            pass
        assert not leader.acquire()  # at once: there is one in line
        assert not leader.release()  # the one in line looks; no ticket is needed for that
        assert in_line.result(10)
    assert not leader.flagged()
    assert not leader.release()
    assert leader.acquire()


def test_one_leader_at_a_time_and_a_look_after_every_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads, in line for moments that end while the lead is handed over: the ledger is a number, a ticket a turn."""
    monkeypatch.setattr(seats, "LINE_SECONDS", 0.0005)
    leader, leading = Leader(), threading.Lock()
    arrived = itertools.count(1)
    due = seen = 0

    def turns() -> None:
        nonlocal due, seen
        for _ in range(400):
            due = next(arrived)
            again = True
            while again:
                again = False
                if leader.acquire():
                    assert leading.acquire(blocking=False)
                    leader.about_to_search()
                    seen = due
                    time.sleep(0.0004)
                    leading.release()
                    again = leader.release()

    with ThreadPoolExecutor(8) as pool:
        for turn_ in [pool.submit(turns) for _ in range(8)]:
            turn_.result(60)
    assert seen == due


def test_a_ticket_that_comes_while_the_leader_looks_in_vain_makes_it_look_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The send is committed and its ticket served between the leader's look and its leaving."""
    tenant = make_tenant()
    real = turn.search
    looked = []

    def search(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        if not looked:
            submit_some(tenant, 1)
            served = threading.Thread(target=rig.turn)
            served.start()
            served.join()
        looked.append(found)
        return found

    monkeypatch.setattr(turn, "search", search)
    rig.turn()
    assert looked[0] is None
    assert statuses() == {"sent": 1}


def test_a_ticket_that_comes_after_the_grant_leaves_the_next_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = make_tenant()
    submit_some(tenant, 1)
    queue = queue_name(Channel.EMAIL, Rail.TRANSACTIONAL)
    real = turn.take_work

    def prepare(*args: Any) -> Any:
        prepared = real(*args)
        submit_some(tenant, 1)
        rig.redis.delete(f"dramatiq:{queue}")  # the ticket of that submit …
        served = threading.Thread(target=rig.turn)  # … is served here, and finds a leader
        served.start()
        served.join()
        return prepared

    monkeypatch.setattr(turn, "take_work", prepare)
    rig.turn()
    assert queues.depth(queue) == 1


def test_a_login_code_does_not_wait_for_what_a_repetition_waits_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader waits for the retry budget on behalf of an unknown batch; the code that comes meanwhile needs none."""
    seed_buckets(rate=10.0)
    tenant = make_tenant()
    unknown = submit_some(tenant, 1)
    rig.sandbox.fault("drop_before", count=1)
    rig.turn()
    rig.lapse_leases()
    missing = 0.9 * turn.LONGEST_WAIT * 10.0 * RETRY_SHARE
    rig.redis.hset(rig.governor.keys[0], mapping={"r_tokens": str(1 - missing), "r_at": str(time.time())})
    leader_waits = threading.Event()
    wait = Leader.wait

    def waits(leader: Leader, seconds: float, *, until_flag: bool) -> None:
        leader_waits.set()
        wait(leader, seconds, until_flag=until_flag)

    monkeypatch.setattr(Leader, "wait", waits)
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(_in_thread, rig)
        assert leader_waits.wait(10)
        code = submit_some(tenant, 1)
        rig.turn()
        leader.result(30)
        pool.submit(_in_thread, rig).result(30)
    assert rig.accepted_ids() == [str(send[0].id) for send in (code, unknown)]


def _in_thread(rig: Rig) -> None:
    try:
        rig.turn()
    finally:
        connections.close_all()
